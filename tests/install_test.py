#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds projects that use Lariat, and runs them.

usage: install_test.py installed|subdirectory ROOT BUILD CMAKE COMPILER C_COMPILER LAUNCHER
  installed: installs BUILD, moves the tree, and builds tests/install/ against it by CMake and by
    pkg-config (C++, C with the archives, C with the shared library); runs the tool.
  subdirectory: builds tests/install/ with the sources as a part of it, by add_subdirectory, and
    configures it with FetchContent.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

# What programs may need at run time: CUDA's cuBLAS, a CBLAS, and what every C++ program has.
MAY_NEED = re.compile(r"lib(cublasLt|(open)?(c?blas)|stdc\+\+|m|gcc_s|c|dl|rt|pthread)\.so[.\d]*|"
                      r"ld-linux\S*|liblariat_c\.so\.\d+")
# What linking lariat::lariat, or `pkg-config --libs lariat`, may bring.
MAY_LINK = {"lariat::cblas", "CUDA::cudart_static", "CUDA::cublasLt", "Threads::Threads"}
MAY_NAME = {"-llariat", "-lcublasLt", "-lcudart_static", "-ldl", "-lrt", "-lpthread", "-lstdc++",
            "-lm"}
HITS = "hit 0 of 100\nhit 96 of 100\n"


def run(*command, **options):
    print(*command, flush=True)
    done = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, text=True, **options)
    if done.returncode:
        sys.exit(f"{done.stdout}\nexit code {done.returncode}")
    return done.stdout


def expect(condition, message):
    if not condition:
        sys.exit(message)


def expect_hits(program, **options):
    expect(run(program, **options) == HITS, f"{program} found other hits")
    needed = re.findall(r"NEEDED\).*\[(.*)\]", run("readelf", "-d", program))
    expect(needed and all(map(MAY_NEED.fullmatch, needed)), f"{program} needs {needed}")


class Installed:
    def __init__(self, folder, root, build, cmake, compiler, c_compiler):
        self.folder, self.root, self.cmake = folder, root, cmake
        self.compiler, self.c_compiler = compiler, c_compiler
        self.source = f"{root}/tests/install"
        run(cmake, "--install", build, "--prefix", folder / "first")
        self.prefix = folder / "moved"
        (folder / "first").rename(self.prefix)
        # Nothing in it tells where it was made, or installed first.
        for path in self.prefix.rglob("*"):
            if path.suffix in {".cmake", ".pc", ".h"}:
                text = path.read_text(encoding="utf-8")
                for where in (root, build, str(folder)):
                    expect(where not in text, f"{path} names {where}")

    def check_cmake(self):
        lines = pathlib.Path(self.source, "CMakeLists.txt").read_text(encoding="utf-8").splitlines()
        expect(len(lines) < 10, f"a consumer's CMake file has {len(lines)} lines")
        build = self.folder / "consumer"
        run(self.cmake, "-S", self.source, "-B", build, "-G", "Ninja",
            f"-DCMAKE_PREFIX_PATH={self.prefix}", f"-DCMAKE_CXX_COMPILER={self.compiler}")
        run(self.cmake, "--build", build)
        expect_hits(build / "consumer")
        expect("3 requests on " in run(build / "planner"), "the planner said something else")
        targets = next(self.prefix.rglob("lariat-lariat-targets.cmake")).read_text(encoding="utf-8")
        links = re.findall(r'INTERFACE_LINK_LIBRARIES "(.*)"', targets)
        expect(len(links) == 1, "lariat::lariat has no list of libraries")
        linked = set(filter(None, re.sub(r"\\?\$<LINK_ONLY:(.*?)>", r"\1", links[0]).split(";")))
        expect(linked <= MAY_LINK, f"lariat::lariat links {linked - MAY_LINK}")
        # A component that is not there, and one that needs no other.
        absent = self.folder / "absent"
        absent.mkdir()
        (absent / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.25)\nproject(absent LANGUAGES CXX)\n"
            "find_package(lariat QUIET COMPONENTS absent)\n"
            "if(lariat_FOUND)\n  message(FATAL_ERROR \"found\")\nendif()\n"
            "find_package(lariat REQUIRED COMPONENTS c)\n"
            "get_target_property(file lariat::c LOCATION)\n"
            "if(NOT EXISTS ${file} OR TARGET lariat::lariat)\n  message(FATAL_ERROR ${file})\n"
            "endif()\n",
            encoding="utf-8")
        run(self.cmake, "-S", absent, "-B", absent / "build", "-G", "Ninja",
            f"-DCMAKE_PREFIX_PATH={self.prefix}", f"-DCMAKE_CXX_COMPILER={self.compiler}")

    def check_pkg_config(self):
        if not shutil.which("pkg-config"):
            print("SKIPPED: pkg-config is not here")
            return
        folder = next(self.prefix.rglob("lariat.pc")).parent
        environment = {**os.environ, "PKG_CONFIG_PATH": str(folder)}

        def flags(*words):
            return run("pkg-config", "--cflags", "--libs", *words, env=environment).split()

        cxx = [self.compiler, "-std=c++20", f"{self.source}/consumer.cc"]
        run(*cxx, *flags("lariat"), "-o", self.folder / "pc")
        expect_hits(self.folder / "pc")
        cxx[-1] = f"{self.source}/planner.cc"
        run(*cxx, *flags("lariat-session"), "-o", self.folder / "pc_planner")
        run(self.folder / "pc_planner")
        c = [self.c_compiler, "-std=c11", f"{self.source}/consumer.c"]
        run(*c, *flags("--static", "lariat"), "-o", self.folder / "pc_c")
        expect_hits(self.folder / "pc_c")
        shared = flags("lariat-c")
        run(*c, *shared, "-o", self.folder / "pc_shared")
        library = str(next(self.prefix.rglob("liblariat_c.so")).parent)
        expect_hits(self.folder / "pc_shared", env={**os.environ, "LD_LIBRARY_PATH": library})

        named = {word for word in flags("--static", "lariat") if word.startswith("-l")}
        others = {word for word in named - MAY_NAME if not re.fullmatch(r"-l(open|c)?blas", word)}
        expect(not others, f"pkg-config --libs lariat names {others}")

    def check_tool(self):
        print(run(self.prefix / "bin/lariat", "--version"), end="")


def installed(folder, root, build, cmake, compiler, c_compiler, _):
    tree = Installed(folder, root, build, cmake, compiler, c_compiler)
    tree.check_cmake()
    tree.check_tool()
    tree.check_pkg_config()


def subdirectory(folder, root, _, cmake, compiler, __, launcher):
    source = f"{root}/tests/install"
    options = ["-G", "Ninja", f"-DLARIAT_SOURCE={root}", f"-DCMAKE_CXX_COMPILER={compiler}"]
    fetched, build = folder / "fetched", folder / "build"
    run(cmake, "-S", f"{source}/fetch", "-B", fetched, *options)
    plan = run("ninja", "-C", fetched, "-t", "commands", "consumer")
    expect("liblariat.a" in plan, f"FetchContent gave no archive: {plan}")
    # The least that can be built, and not optimised.
    run(cmake, "-S", f"{source}/subdirectory", "-B", build, *options, "-DLARIAT_SESSION=OFF",
        "-DLARIAT_CUDA=OFF", "-DCMAKE_BUILD_TYPE=None",
        "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
        *([f"-DCMAKE_CXX_COMPILER_LAUNCHER={launcher}"] if launcher else []))
    run(cmake, "--build", build, "--parallel", "2")
    expect_hits(build / "consumer")
    (own,) = [line for line in (build / "compile_commands.json").read_text().splitlines()
              if "consumer.cc.o" in line and "command" in line]
    flags = re.findall(r" (-[Wfm]\S*)", own)
    expect(not flags, f"consumer.cc is compiled with {flags}")
    listed = run("ctest", "--test-dir", build, "-N")
    expect("Total Tests: 0" in listed, f"the project has tests: {listed}")
    run(cmake, "--install", build, "--prefix", folder / "nothing")
    expect(not list((folder / "nothing").rglob("*lariat*")), "the project installs Lariat")


def main():
    mode, *arguments = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        modes = {"installed": installed, "subdirectory": subdirectory}
        modes[mode](pathlib.Path(folder), *arguments)


if __name__ == "__main__":
    main()
