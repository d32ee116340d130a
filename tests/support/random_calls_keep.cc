// SPDX-License-Identifier: Apache-2.0
// Random calls about what stays in the cache and what goes.
#include <tuple>

#include "support/random_calls.h"

namespace lariat::testing {

// Pins and unpins prefixes, forgets some, and seldom all of a salt.
void RandomCalls::Keep() {
  const auto found = model().sequences().find(AnySequence());
  if (found == model().sequences().end()) return;
  std::vector<TokenId> prompt = found->second.ids;
  bool salted = Chance(30);
  const std::int64_t what = Roll(10);
  const std::int64_t least = what < 8 ? std::min(block_, std::ssize(prompt)) : 0;
  prompt.resize(static_cast<std::size_t>(least + Roll(std::ssize(prompt) - least + 1)));
  if (what < 8 && std::ssize(prompt) < block_) return;  // nothing to pin: tested elsewhere
  if (Chance(20) && !prompt.empty()) prompt.back() += 7;
  if (what >= 5 && !pinned_.empty() && Chance(70)) {  // what was pinned, or part of it
    std::tie(prompt, salted) = pinned_[static_cast<std::size_t>(Roll(std::ssize(pinned_)))];
    if (Chance(20))
      prompt.resize(static_cast<std::size_t>(block_ + Roll(std::ssize(prompt) - block_ + 1)));
  }
  OpenOptions options;
  if (salted) options.salt = "tenant";
  const std::string key = reference::OptionsKey(options);
  const auto name = [&](const char* call) { return Text(call, " ", prompt.size(), salted); };
  if (what < 8) {
    const bool pins = what < 5;
    const Code code = pair_.planning() ? Code::kNotReady
                      : pins           ? model().Pin(prompt, key)
                                       : model().Unpin(prompt, key);
    pair_.Call(name(pins ? "Pin" : "Unpin"), {code}, [&](KVCache& cache, int) {
      return pins ? cache.Pin(prompt, options) : cache.Unpin(prompt, options);
    });
    if (pins && code == Code::kOk) pinned_.emplace_back(prompt, salted);
    pair_.CheckState();
    return;
  }
  std::int64_t removed[2] = {};
  const bool salt = Chance(15);
  const Code code = pair_.Call(
      name(salt ? "RemoveSalt" : "Remove"), Unless({Code::kOk}), [&](KVCache& cache, int which) {
        const auto result = salt ? cache.RemoveSalt(options.salt) : cache.Remove(prompt, options);
        if (result.ok()) removed[which] = *result;
        return result.status();
      });
  if (code == Code::kOk) {
    const std::int64_t want =
        salt ? RemoveSalt(std::string(options.salt))
             : model().Remove(prompt, [&](const std::string& of) { return of == key; });
    if (removed[0] != want) pair_.Fail(Text("removed ", removed[0], ", should be ", want));
  }
  pair_.CheckState();
}

std::int64_t RandomCalls::RemoveSalt(const std::string& salt) {
  const std::string begin = Text(salt.size(), ":", salt);
  return model().Remove({}, [&](const std::string& of) { return of.rfind(begin, 0) == 0; });
}

// Of few priorities, so that there are equals.
std::vector<Retention> RandomCalls::AnyRetention() {
  std::vector<Retention> retention;
  if (model().config().priorities ? Chance(40) : !Chance(1)) return retention;
  for (std::int64_t n = 1 + Roll(3); n > 0; --n) {
    Retention& range = retention.emplace_back();
    range.first_token = Chance(50) ? 0 : Roll(3 * block_);
    if (Chance(50)) range.last_token = range.first_token + 1 + Roll(3 * block_);
    range.priority = static_cast<int>(Roll(5)) * 25;
    if (Chance(50)) range.ttl_ms = 1 + Roll(20);
  }
  if (!Chance(2)) return retention;
  switch (Roll(5)) {
    case 0: retention.back().first_token = -1; break;
    case 1: retention.back().last_token = retention.back().first_token; break;
    case 2: retention.back().priority = kMaxPriority + 1; break;
    case 3: retention.back().priority = -1; break;
    default: retention.back().ttl_ms = -1;
  }
  return retention;
}

bool RandomCalls::RetentionOk(const std::vector<Retention>& retention) const {
  if (retention.empty()) return true;
  if (!pair_.model().config().priorities) return false;
  return std::all_of(retention.begin(), retention.end(), [](const Retention& range) {
    return range.first_token >= 0 && range.last_token >= -1 &&
           (range.last_token == -1 || range.last_token > range.first_token) &&
           range.priority >= 0 && range.priority <= 100 && range.ttl_ms >= 0;
  });
}

void RandomCalls::SetQuota(const std::string& salt, std::int64_t limit) {
  const Code code = pair_.Call(Text("SetQuota ", salt, " ", limit),
                               Unless({limit < -1 ? Code::kInvalidArgument : Code::kOk}),
                               [&](KVCache& cache, int) { return cache.SetQuota(salt, limit); });
  if (code == Code::kOk) model().SetQuota(salt, limit);
  pair_.CheckState();
}

// Time passes, or a salt gets a quota or loses it.
void RandomCalls::Limit() {
  if (Chance(40)) {
    const char* const salts[] = {"tenant", "", "nobody"};
    return SetQuota(salts[Roll(3)],
                    Chance(40) ? -1 - Roll(20) / 19 : Roll(model().config().total_blocks));
  }
  const std::int64_t now = model().now() + (Chance(5) ? -1 : Roll(15));
  const Code code = pair_.Call(Text("Expire ", now),
                               Unless({now < model().now() ? Code::kInvalidArgument : Code::kOk}),
                               [&](KVCache& cache, int) { return cache.Expire(now); });
  if (code == Code::kOk) model().Expire(now);
  pair_.CheckState();
}

}  // namespace lariat::testing
