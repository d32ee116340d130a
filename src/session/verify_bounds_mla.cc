// SPDX-License-Identifier: Apache-2.0
// Bounds of an MLA layer's stored rows: docs/numerics.md, "Replayed recordings", has the
// derivation.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "session/verify_bounds.h"

namespace lariat::session {
namespace {

class LatentBounder {
 public:
  LatentBounder(const RecordedLayer& layer, const Recording& recording, LatentSource source,
                DType dtype)
      : layer_(layer),
        mla_(*layer.mla),
        source_(source),
        rows_(recording.batch * recording.tokens),
        tokens_(recording.tokens),
        rank_(mla_.dims.kv_lora_rank),
        rope_dim_(mla_.dims.qk_rope_head_dim),
        rope_(layer.spec.rope < 0 ? nullptr
                                  : &recording.ropes[static_cast<std::size_t>(layer.spec.rope)]),
        factor_(AttentionFactorOf(rope_, recording.tokens)),
        given_(static_cast<std::size_t>(rank_ + rope_dim_)),
        off_(given_.size()),
        errors_(given_.size()) {
    if (dtype == DType::kFP32) return;
    stored_ = UnitsOf(dtype);
    if (source == LatentSource::kHidden) input_ = stored_;
  }

  LatentBounds Make() {
    LatentBounds bounds;
    if (layer_.k.compared()) bounds.latent.resize(layer_.k.cached.size());
    if (layer_.v.compared()) bounds.k_pe.resize(layer_.v.cached.size());
    for (std::int64_t row = 0; row < rows_; ++row) {
      FillGiven(row);
      if (layer_.k.compared()) FillLatent(row, bounds.latent.data() + row * rank_);
      if (layer_.v.compared()) FillKey(row, bounds.k_pe.data() + row * rope_dim_);
    }
    return bounds;
  }

 private:
  // Of a number that a product reads: its own rounding, and that of the recording.
  double InputError(double value) const {
    return (input_.relative + kSingle) * std::fabs(value) + input_.absolute;
  }

  double StoredError(double value, double off) const {
    return stored_.relative * (std::fabs(value) + off) + stored_.absolute;
  }

  // What goes into norm and RoPE, and how far it may be off.
  void FillGiven(std::int64_t row) {
    for (std::int64_t i = 0; i < rank_ + rope_dim_; ++i) {
      const auto at = static_cast<std::size_t>(i);
      off_[at] = 0;
      if (source_ == LatentSource::kHidden) {
        Project(row, at);
      } else if (i < rank_) {
        given_[at] = mla_.c_kv.empty() ? 0 : mla_.c_kv[static_cast<std::size_t>(row * rank_ + i)];
      } else {
        given_[at] = mla_.k_pe.empty()
                         ? 0
                         : mla_.k_pe[static_cast<std::size_t>(row * rope_dim_ + i - rank_)];
      }
    }
  }

  // off_: what a sum may be off; errors_: the squares of its single errors, without those of the
  // hidden state, which all sums share.
  void Project(std::int64_t row, std::size_t element) {
    const std::int64_t width = mla_.hidden_size;
    const double* const hidden = mla_.hidden.data() + row * width;
    const double* const weights = mla_.w_down.data() + static_cast<std::int64_t>(element) * width;
    double sum = 0, terms = 0, of_weights = 0, of_hidden = 0;
    for (std::int64_t m = 0; m < width; ++m) {
      sum += hidden[m] * weights[m];
      terms += Square(hidden[m] * weights[m]);
      of_weights += Square(InputError(weights[m]) * hidden[m]);
      of_hidden += Square(InputError(hidden[m]) * weights[m]);
    }
    // Partial sums in fp32 walk from 0 to the sum, which is then rounded to the type of the rows.
    errors_[element] = of_weights + Square(InputError(sum)) +
                       Square(kSingle) * static_cast<double>(width) * (sum * sum / 3 + terms / 6);
    given_[element] = sum;
    off_[element] = kDeviations * std::sqrt(errors_[element] + of_hidden);
  }

  // How far the norm's factor may be off, as a fraction: to first order it is a weighted sum of the
  // latent's errors. inverse: the factor.
  double FactorError(std::int64_t row, double inverse) const {
    if (source_ == LatentSource::kRows) return 0;
    const double* const hidden = mla_.hidden.data() + row * mla_.hidden_size;
    double errors = 0;
    std::vector<double> gradient(static_cast<std::size_t>(mla_.hidden_size), 0.0);
    for (std::int64_t i = 0; i < rank_; ++i) {
      const double value = given_[static_cast<std::size_t>(i)];
      errors += Square(value) * errors_[static_cast<std::size_t>(i)];
      const double* const weights = mla_.w_down.data() + i * mla_.hidden_size;
      for (std::size_t m = 0; m < gradient.size(); ++m) gradient[m] += value * weights[m];
    }
    for (std::size_t m = 0; m < gradient.size(); ++m) {
      errors += Square(gradient[m] * InputError(hidden[m]));
    }
    const double linear =
        kDeviations * Square(inverse) / static_cast<double>(rank_) * std::sqrt(errors);
    // Beyond it: the root of the mean square moves by at most the root of the errors' mean square.
    const double moved = inverse * RootMeanSquare(off_.data(), rank_);
    const double change = 2 * moved + Square(moved);  // of the mean square, as a fraction
    if (change >= 1) return std::numeric_limits<double>::infinity();
    return linear + Square(moved) / 2 + 0.375 * Square(change) / std::pow(1 - change, 2.5);
  }

  void FillLatent(std::int64_t row, double* bounds) const {
    const double* const cached = layer_.k.cached.data() + row * rank_;
    if (mla_.normed && source_ == LatentSource::kRows) {
      const double moved = layer_.k.exact ? 0 : kSingle;
      for (std::int64_t i = 0; i < rank_; ++i) {
        bounds[i] = moved * std::fabs(cached[i]) + StoredError(cached[i], 0);
      }
      return;
    }
    const double rms = RootMeanSquare(given_.data(), rank_);
    const double inverse = 1 / std::sqrt(rms * rms + mla_.dims.norm_eps);
    const double factor = 1 + FactorError(row, inverse);
    const double largest = std::sqrt(static_cast<double>(rank_));  // of anything normed
    const double arithmetic = kSingle * (24 + static_cast<double>(rank_) / 256);
    for (std::int64_t i = 0; i < rank_; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const double weight = std::fabs(mla_.norm[at]);
      const double rounded = weight * (1 + input_.relative) + input_.absolute;
      const double exact = std::fabs(given_[at]) * inverse * weight;
      const double most = (std::fabs(given_[at]) + off_[at]) * inverse * factor * rounded;
      const double off =
          std::min(largest * rounded + exact, most - exact) + arithmetic * std::fabs(cached[i]);
      bounds[i] = off + StoredError(cached[i], off);
    }
  }

  void FillKey(std::int64_t row, double* bounds) const {
    const double* const cached = layer_.v.cached.data() + row * rope_dim_;
    const double* const off = off_.data() + rank_;
    for (std::int64_t i = 0; i < rope_dim_; ++i) {
      bounds[i] = off[i] + kSingle * std::fabs(cached[i]);
    }
    if (rope_ != nullptr) {
      const double turned = TurnedShare(row % tokens_) * RootMeanSquare(cached, rope_dim_);
      for (std::int64_t p = 0; p < rope_->rotary_dim / 2; ++p) {
        const RopePair pair = PairOf(*rope_, p);
        const double both = factor_ * std::hypot(off[pair.in_x], off[pair.in_y]) + turned;
        bounds[pair.out_x] = both;
        bounds[pair.out_y] = both;
      }
    }
    for (std::int64_t i = 0; i < rope_dim_; ++i) bounds[i] += StoredError(cached[i], bounds[i]);
  }

  const RecordedLayer& layer_;
  const RecordedMla& mla_;
  const LatentSource source_;
  const std::int64_t rows_, tokens_, rank_, rope_dim_;
  const RopeSpec* const rope_;
  const double factor_;
  RoundingUnits input_, stored_;              // none in fp32
  std::vector<double> given_, off_, errors_;  // one row: [latent | k_pe]
};

}  // namespace

LatentBounds LatentBoundsOf(const RecordedLayer& layer, const Recording& recording,
                            LatentSource source, DType dtype) {
  return LatentBounder(layer, recording, source, dtype).Make();
}

}  // namespace lariat::session
