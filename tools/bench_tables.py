#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the tables of docs/benchmarks.md from the figures under docs/benchmarks/.

usage: bench_tables.py collect ROWS.json [--build DIR] [--commit NAME] [--date YYYY-MM-DD] [--name NAME]
       bench_tables.py write | check [--root DIR]

collect  puts what `lariat bench --json` wrote, with the machine it ran on, into
         docs/benchmarks/DATE-NAME.json (NAME: h200 of an NVIDIA H200, cpu of a run on the CPU)
write    makes every table between `<!-- bench NAME TABLE -->` and `<!-- /bench -->` anew, from the
         newest file of that NAME and docs/benchmarks/targets.json; tables without a file stay
check    fails where write would change anything
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- bench (\S+) (\S+) -->\n)(.*?)(<!-- /bench -->)", re.DOTALL)


# --- collect ------------------------------------------------------------------------------------

def output(*command):
    """What a command prints, or None where it cannot run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip() or None


def cache_entry(build, name):
    try:
        text = (build / "CMakeCache.txt").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(rf"^{name}:\w+=(.*)$", text, re.MULTILINE)
    return found.group(1) if found else None


def processor():
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    found = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
    return f"{found.group(1) if found else platform.machine()}, {os.cpu_count()} threads"


def first_line(text):
    return text.splitlines()[0] if text else None


def collect(options):
    rows = json.loads(pathlib.Path(options.rows).read_text(encoding="utf-8"))
    build = pathlib.Path(options.build)
    cuda = any(row["backend"] == "cuda" for row in rows)
    gpu = output("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader") if cuda else None
    device, _, driver = (first_line(gpu) or processor()).rpartition(", ") if gpu else (processor(), "", "")
    nvcc = cache_entry(build, "CMAKE_CUDA_COMPILER") or "nvcc"
    toolkit = re.search(r"release ([\d.]+)", output(nvcc, "--version") or "") if cuda else None
    compiler = first_line(output(cache_entry(build, "CMAKE_CXX_COMPILER") or "c++", "--version"))
    name = options.name or (device.split()[-1].lower() if gpu else "gpu" if cuda else "cpu")
    document = {
        "date": options.date,
        "device": device,
        "driver": driver or None,
        "host": processor(),
        "toolkit": toolkit.group(1) if toolkit else None,
        "architectures": cache_entry(build, "CMAKE_CUDA_ARCHITECTURES") if cuda else None,
        "compiler": compiler,
        "commit": options.commit or output("git", "describe", "--always", "--dirty", "--exclude=*"),
        "rows": rows,
    }
    path = ROOT / "docs/benchmarks" / f"{options.date}-{name}.json"
    path.parent.mkdir(exist_ok=True)
    head = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in document.items() if key != "rows"]
    body = ",\n".join("    " + json.dumps(row) for row in rows)
    path.write_text("{\n" + ",\n".join(head) + ',\n  "rows": [\n' + body + "\n  ]\n}\n", encoding="utf-8")
    print(path)


# --- write, check -------------------------------------------------------------------------------

def number(value, digits=4):
    """As many digits, but no fraction of what is large."""
    if value is None:
        return ""
    whole = len(str(int(abs(value))))
    return f"{value:.{max(0, min(digits - whole, 3))}f}"


def percent(value):
    return f"{100 * value:.1f} %"


def shape_of(row):
    return dict(item.split("=", 1) for item in row["shape"].split(",") if "=" in item)


class Figures:
    """The rows of one file, found by what they are."""

    def __init__(self, path):
        self.path = path
        self.document = json.loads(path.read_text(encoding="utf-8"))
        self.rows = self.document["rows"]

    def find(self, want, **more):
        """The one row of an op, with these keys of its shape; None where there is none."""
        keys = {**want.get("shape", {}), **more}
        found = [row for row in self.rows
                 if row["op"] == want["op"] and row["median_us"] is not None
                 and want.get("hot", row.get("hot")) == row.get("hot")
                 and want.get("dtype", row.get("dtype")) == row.get("dtype")
                 and all(shape_of(row).get(key) == str(value) for key, value in keys.items())]
        if len(found) > 1:
            sys.exit(f"{self.path.name}: {want} {more} are {len(found)} rows")
        return found[0] if found else None

    def copy_ceiling(self):
        """GB/s of the copy that rows which move bytes are compared with."""
        row = self.find({"op": "ceiling", "shape": {"kind": "copy"}})
        return row["gb_per_s"] if row else None


def verdict(text, worse, unit="%"):
    """`worse`: by which part of the target it is missed; 0 or less: it is not."""
    return text if worse is None or worse <= 0 else f"{text}: missed by {100 * worse:.1f} {unit}"


def target_of(want, plain, best):
    """What was asked, and whether it was reached. `best`: the row that the target is about."""
    texts = []
    if "target_us" in want:
        limit = want["target_us"]
        texts.append(verdict(f"{limit}", best and best["median_us"] / limit - 1))
    if "target_plain_us" in want:
        limit = want["target_plain_us"]
        texts.append(verdict(f"{limit} plain", plain and plain["median_us"] / limit - 1))
    if "target_fraction" in want:
        limit = want["target_fraction"]
        texts.append(verdict(f"{100 * limit:g} %", best and limit - best["fraction"], "points"))
    if "target_times_products" in want:
        limit = want["target_times_products"]
        texts.append(verdict(f"{limit} x its products", best and 1 / best["fraction"] / limit - 1))
    if "target_gb_per_s" in want:
        limit = want["target_gb_per_s"]
        texts.append(verdict(f"{limit} GB/s", best and 1 - best["gb_per_s"] / limit))
    if "target_p99_us" in want:
        limit = want["target_p99_us"]
        texts.append(verdict(f"p99 {limit}", best and best["p99_us"] / limit - 1))
    if "target_ns" in want:
        limit = want["target_ns"]
        texts.append(verdict(f"{limit}", best and best["median_us"] * 1e3 / limit - 1))
    return "; ".join(texts)


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def heat(row):
    return "" if row is None or "hot" not in row else "hot" if row["hot"] else "cold"


def launch_table(figures, wants):
    """Operations: without and with a dependent launch where there are both."""
    rows = []
    for want in wants:
        plain = figures.find(want, launch="off")
        early = figures.find(want, launch="early") or figures.find(want, launch="wait")
        if plain is None and early is None:
            plain = figures.find(want)
        elif early is not None and not early["pdl"]:  # where all launches are plain ones
            plain, early = plain or early, None
        best = early or plain
        products = best is not None and best["tflop_per_s"] > 0 and want.get("products", False)
        rows.append([want.get("label", ""), want["text"], heat(best),
                     number(plain and plain["median_us"]), number(early and early["median_us"]),
                     number(best and best["gb_per_s"]) if best else "not measured",
                     number(best["tflop_per_s"]) if products else "",
                     percent(best["fraction"]) + (" of products" if products else "") if best else "",
                     want.get("peer", ""), target_of(want, plain, best)])
    return table(["op", "shape", "", "plain, us", "dependent, us", "GB/s", "TFLOP/s", "of the ceiling",
                  "best peer, us", "target"], rows)


def link_table(figures, wants):
    rows = []
    for want in wants:
        row = figures.find(want)
        rows.append([want.get("label", ""), want["text"], number(row and row["median_us"]),
                     number(row and row.get("p99_us")), number(row and row["gb_per_s"]),
                     percent(row["fraction"]) if row and row["fraction"] else "",
                     f"{row['times_alone']:.2f} x" if row and row.get("times_alone") else "",
                     target_of(want, row, row)])
    return table(["op", "shape", "us", "p99, us", "GB/s", "of one large copy", "of alone", "target"], rows)


def manager_table(figures, wants):
    rows = []
    for want in wants:
        row = figures.find(want)
        rows.append([want["label"], want["text"], number(row and row["median_us"] * 1e3, 3),
                     number(row and row["p99_us"] * 1e3, 3), target_of(want, row, row)])
    return table(["", "blocks, sequences or children", "ns", "p99, ns", "target, ns"], rows)


def ceiling_table(figures, _):
    rows = [[row["shape"].partition("launch=")[0].rstrip(",") + (" (dependent)" if row["pdl"] else ""), row["dtype"] if row["tflop_per_s"] else "",
             number(row["median_us"]), number(row["gb_per_s"]) if row["gb_per_s"] else "",
             number(row["tflop_per_s"]) if row["tflop_per_s"] else ""]
            for row in figures.rows if row["op"] == "ceiling"]
    return table(["ceiling", "", "us", "GB/s", "TFLOP/s"], rows)


def machine_text(figures, _):
    d = figures.document
    parts = [f"{d['device']}" + (f", driver {d['driver']}" if d["driver"] else "")]
    if d["toolkit"]:
        parts.append(f"toolkit {d['toolkit']}" + (f" for {d['architectures']}" if d["architectures"] else ""))
    parts += [d["compiler"] or "an unknown compiler", f"commit {d['commit']}"]
    ceiling = figures.copy_ceiling()
    copy = f"; copy ceiling {number(ceiling, 5)} GB/s" if ceiling else ""
    return (f"{d['date']}, one run: {'; '.join(parts)}{copy}. All rows: "
            f"[{figures.path.name}](benchmarks/{figures.path.name}).\n")


KINDS = {"launch": launch_table, "link": link_table, "manager": manager_table,
         "ceilings": ceiling_table, "machine": machine_text}


def newest(folder, name):
    """The last by date of the files of a machine; None where there is none."""
    files = sorted(p for p in folder.glob("*.json")
                   if re.fullmatch(rf"\d{{4}}-\d\d-\d\d-{re.escape(name)}\.json", p.name))
    return Figures(files[-1]) if files else None


def remade(root):
    """docs/benchmarks.md as it should be, and the tables that have no figures yet."""
    folder = root / "docs/benchmarks"
    targets = json.loads((folder / "targets.json").read_text(encoding="utf-8"))
    missing = []

    def block(match):
        begin, name, wanted, _, end = match.groups()
        figures = newest(folder, name)
        if figures is None:
            missing.append(f"{name} {wanted}")
            return match.group(0)
        made = targets[name][wanted]
        return f"{begin}\n{KINDS[made['kind']](figures, made.get('rows', []))}\n{end}"

    text = (root / "docs/benchmarks.md").read_text(encoding="utf-8")
    return text, BLOCK.sub(block, text), missing


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("collect")
    add.add_argument("rows")
    add.add_argument("--build", default=str(ROOT / "build/release"))
    add.add_argument("--commit", default=os.environ.get("LARIAT_COMMIT"))
    add.add_argument("--date", default=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"))
    add.add_argument("--name")
    for name in ("write", "check"):
        commands.add_parser(name).add_argument("--root", type=pathlib.Path, default=ROOT)
    options = parser.parse_args()
    if options.command == "collect":
        return collect(options)
    before, after, missing = remade(options.root)
    for what in missing:
        print(f"no figures yet: {what}")
    if options.command == "write":
        (options.root / "docs/benchmarks.md").write_text(after, encoding="utf-8")
    elif before != after:
        sys.exit("docs/benchmarks.md is not what its figures give: run tools/bench_tables.py write")
    return None


if __name__ == "__main__":
    main()
