// SPDX-License-Identifier: Apache-2.0
// Runs the built `lariat` command.
#pragma once
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "support/catch.h"
#include "support/temp_folder.h"

namespace lariat::test {

struct CommandResult {
  int exit_code = -1;
  std::string out;
  std::string err;
};

inline std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// arguments: as a shell takes them. environment: "NAME=value ", before the command.
inline CommandResult RunLariat(const std::string& arguments, const std::string& environment = "") {
  const TempFolder folder;
  const std::string line = "unset LARIAT_BACKEND; " + environment + "\"" LARIAT_COMMAND "\" " +
                           arguments + " > \"" + folder.File("out") + "\" 2> \"" +
                           folder.File("err") + "\" < /dev/null";
  const int status = std::system(line.c_str());
  CommandResult result;
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  result.out = ReadFile(folder.File("out"));
  result.err = ReadFile(folder.File("err"));
  return result;
}

}  // namespace lariat::test
