# SPDX-License-Identifier: Apache-2.0
# The test programs, one line each.
