// SPDX-License-Identifier: Apache-2.0
#include "session/verify_attention.h"

#include <algorithm>
#include <cmath>

namespace lariat::session {
namespace {

double Dot(const double* a, const double* b, std::int64_t size) {
  double sum = 0;
  for (std::int64_t i = 0; i < size; ++i) sum += a[i] * b[i];
  return sum;
}

// y += factor * x.
void AddScaled(double factor, const double* x, std::int64_t size, double* y) {
  for (std::int64_t i = 0; i < size; ++i) y[i] += factor * x[i];
}

void Softmax(std::vector<double>& scores) {
  const double largest = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double& score : scores) sum += score = std::exp(score - largest);
  for (double& score : scores) score /= sum;
}

const RopeSpec* RopeOf(const RecordedLayer& layer, const Recording& recording) {
  return layer.spec.rope < 0 ? nullptr
                             : &recording.ropes[static_cast<std::size_t>(layer.spec.rope)];
}

}  // namespace

MlaAttention::MlaAttention(const RecordedLayer& layer, const Recording& recording, DType dtype)
    : layer_(layer),
      mla_(*layer.mla),
      batch_(recording.batch),
      tokens_(recording.tokens),
      heads_(mla_.heads),
      rank_(mla_.dims.kv_lora_rank),
      rope_dim_(mla_.dims.qk_rope_head_dim),
      nope_(mla_.dims.qk_nope_head_dim),
      v_dim_(mla_.dims.v_head_dim),
      rope_(RopeOf(layer, recording)),
      scale_(1 / std::sqrt(static_cast<double>(nope_ + rope_dim_))),
      q_(mla_.q) {
  if (dtype != DType::kFP32) stored_ = UnitsOf(dtype);
  if (rope_ != nullptr) {
    scale_ *= SoftmaxScaleFactor(*rope_);
    Result<RopeFrequencies> made = ComputeRopeFrequencies(*rope_, tokens_);
    if (made.ok()) frequencies_ = *std::move(made);
    TurnQueries();
  }
  AbsorbQueries();
  const auto size = static_cast<std::size_t>(batch_ * heads_ * tokens_ * v_dim_);
  noise_.resize(size);
  for (std::int64_t b = 0; b < batch_; ++b) {
    std::vector<double> out;
    AttendAbsorbed(b, layer.k.cached.data() + b * tokens_ * rank_,
                   layer.v.cached.data() + b * tokens_ * rope_dim_, out);
    recorded_.insert(recorded_.end(), out.begin(), out.end());
    FillNoise(b);
  }
}

void MlaAttention::TurnQueries() {
  std::vector<double> turned(static_cast<std::size_t>(rope_dim_));
  for (std::int64_t row = 0; row < batch_ * tokens_ * heads_; ++row) {
    double* const q = q_.data() + row * (nope_ + rope_dim_) + nope_;
    const auto position = static_cast<double>(row / heads_ % tokens_);
    std::copy(q, q + rope_dim_, turned.begin());
    for (std::size_t p = 0; p < frequencies_.inv_freq.size(); ++p) {
      const RopePair pair = PairOf(*rope_, static_cast<std::int64_t>(p));
      const double angle = position * frequencies_.inv_freq[p];
      const double cos = frequencies_.attention_factor * std::cos(angle);
      const double sin = frequencies_.attention_factor * std::sin(angle);
      turned[static_cast<std::size_t>(pair.out_x)] = q[pair.in_x] * cos - q[pair.in_y] * sin;
      turned[static_cast<std::size_t>(pair.out_y)] = q[pair.in_x] * sin + q[pair.in_y] * cos;
    }
    std::copy(turned.begin(), turned.end(), q);
  }
}

void MlaAttention::AbsorbQueries() {
  absorbed_.assign(static_cast<std::size_t>(batch_ * heads_ * tokens_ * rank_), 0.0);
  double* absorbed = absorbed_.data();
  for (std::int64_t b = 0; b < batch_; ++b) {
    for (std::int64_t h = 0; h < heads_; ++h) {
      for (std::int64_t t = 0; t < tokens_; ++t, absorbed += rank_) {
        const double* const q = Query(b, t, h);
        for (std::int64_t n = 0; n < nope_; ++n) {
          AddScaled(q[n], Weights(h * (nope_ + v_dim_) + n), rank_, absorbed);
        }
      }
    }
  }
}

void MlaAttention::AttendAbsorbed(std::int64_t b, const double* latents, const double* k_pe,
                                  std::vector<double>& out) const {
  out.clear();
  std::vector<double> scores, context;
  for (std::int64_t h = 0; h < heads_; ++h) {
    for (std::int64_t t = 0; t < tokens_; ++t) {
      const double* const absorbed = absorbed_.data() + ((b * heads_ + h) * tokens_ + t) * rank_;
      scores.clear();
      for (std::int64_t j = 0; j <= t; ++j) {
        scores.push_back(scale_ * (Dot(absorbed, latents + j * rank_, rank_) +
                                   Dot(Query(b, t, h) + nope_, k_pe + j * rope_dim_, rope_dim_)));
      }
      Softmax(scores);
      context.assign(static_cast<std::size_t>(rank_), 0.0);
      for (std::int64_t j = 0; j <= t; ++j) {
        AddScaled(scores[static_cast<std::size_t>(j)], latents + j * rank_, rank_, context.data());
      }
      for (std::int64_t e = 0; e < v_dim_; ++e) {
        out.push_back(Dot(Weights(h * (nope_ + v_dim_) + nope_ + e), context.data(), rank_));
      }
    }
  }
}

void MlaAttention::Attend(std::int64_t b, std::span<const double> latents,
                          std::span<const double> k_pe, const ExpandedRows& rows,
                          std::vector<double>& out, std::vector<double>& bounds) const {
  // What the latents' own errors do to the output is known; how far they may be off is another
  // check's to say.
  AttendAbsorbed(b, latents.data(), k_pe.data(), bounds);
  const std::int64_t first = b * heads_ * tokens_ * v_dim_;
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    const std::size_t at = static_cast<std::size_t>(first) + i;
    bounds[i] = std::fabs(bounds[i] - recorded_[at]) + noise_[at];
  }
  const std::int64_t head_k = nope_ + rope_dim_;
  out.assign(static_cast<std::size_t>(tokens_ * heads_ * v_dim_), 0.0);
  std::vector<double> scores;
  for (std::int64_t t = 0; t < tokens_; ++t) {
    for (std::int64_t h = 0; h < heads_; ++h) {
      scores.clear();
      for (std::int64_t j = 0; j <= t; ++j) {
        const double* const key = rows.k.data() + (j * heads_ + h) * head_k;
        scores.push_back(scale_ * Dot(Query(b, t, h), key, head_k));
      }
      Softmax(scores);
      for (std::int64_t j = 0; j <= t; ++j) {
        AddScaled(scores[static_cast<std::size_t>(j)], rows.v.data() + (j * heads_ + h) * v_dim_,
                  v_dim_, out.data() + (t * heads_ + h) * v_dim_);
      }
    }
  }
}

// --- How far the model and the expanded rows may be from attention over the recorded cache ------

// Rows [first_weight, first_weight + dim) of w_kv_b times the latents, to elements 0 .. dim - 1 of
// rows that are `stride` apart.
void MlaAttention::FillHeadRows(std::int64_t b, std::int64_t first_weight, std::int64_t dim,
                                std::int64_t stride, HeadRows& rows) const {
  for (std::vector<double>* const part : {&rows.values, &rows.own, &rows.of_weights}) {
    part->assign(static_cast<std::size_t>(tokens_ * stride), 0.0);
  }
  for (std::int64_t j = 0; j < tokens_; ++j) {
    const double* const latent = layer_.k.cached.data() + (b * tokens_ + j) * rank_;
    for (std::int64_t d = 0; d < dim; ++d) {
      const double* const weights = Weights(first_weight + d);
      double sum = 0, terms = 0, of_weights = 0;
      for (std::int64_t i = 0; i < rank_; ++i) {
        sum += weights[i] * latent[i];
        terms += Square(weights[i] * latent[i]);
        of_weights += Square(ErrorOfWeight(weights[i]) * latent[i]);
      }
      const auto at = static_cast<std::size_t>(j * stride + d);
      rows.values[at] = sum;
      rows.of_weights[at] = of_weights;
      // The recorded latents; partial sums in fp32, which walk from 0 to the sum; the cache's type.
      rows.own[at] =
          Square(kSingle) * (terms + static_cast<double>(rank_) * (sum * sum / 3 + terms / 6)) +
          Square(ErrorOfWeight(sum));
    }
  }
}

void MlaAttention::FillNoise(std::int64_t b) {
  const std::int64_t head_k = nope_ + rope_dim_;
  HeadRows keys, values;
  for (std::int64_t h = 0; h < heads_; ++h) {
    const std::int64_t first_weight = h * (nope_ + v_dim_);
    FillHeadRows(b, first_weight, nope_, head_k, keys);
    FillHeadRows(b, first_weight + nope_, v_dim_, v_dim_, values);
    for (std::int64_t j = 0; j < tokens_; ++j) {
      for (std::int64_t d = 0; d < rope_dim_; ++d) {
        const double k_pe =
            layer_.v.cached[static_cast<std::size_t>((b * tokens_ + j) * rope_dim_ + d)];
        const auto at = static_cast<std::size_t>(j * head_k + nope_ + d);
        keys.values[at] = k_pe;
        keys.own[at] = Square(kSingle * k_pe);
      }
    }
    for (std::int64_t t = 0; t < tokens_; ++t) FillNoiseOfQuery(b, h, t, keys, values);
  }
}

// How far a score may be off, but for what fp32 does to it in the model.
double MlaAttention::ScoreError(const double* q, std::int64_t t, const HeadRows& keys,
                                std::int64_t j) const {
  const std::int64_t first = j * (nope_ + rope_dim_);
  const double* const key = keys.values.data() + first;
  double errors = 0;
  for (std::int64_t d = 0; d < nope_ + rope_dim_; ++d) {
    const auto at = static_cast<std::size_t>(first + d);
    errors += Square(q[d]) * (keys.own[at] + keys.of_weights[at]) + Square(kSingle * q[d] * key[d]);
  }
  // The model's angles are in fp32: a frequency and its product with the position.
  for (std::size_t p = 0; p < frequencies_.inv_freq.size(); ++p) {
    const RopePair pair = PairOf(*rope_, static_cast<std::int64_t>(p));
    const double angle = kSingle * (2 * static_cast<double>(t) * frequencies_.inv_freq[p] + 2);
    errors += Square(angle * std::hypot(q[nope_ + pair.out_x], q[nope_ + pair.out_y]) *
                     std::hypot(key[nope_ + pair.out_x], key[nope_ + pair.out_y]));
  }
  return kDeviations * scale_ * std::sqrt(errors);
}

void MlaAttention::FillNoiseOfQuery(std::int64_t b, std::int64_t h, std::int64_t t,
                                    const HeadRows& keys, const HeadRows& values) {
  const std::int64_t head_k = nope_ + rope_dim_;
  const double* const q = Query(b, t, h);
  std::vector<double> shares, off;  // off: of scores
  for (std::int64_t j = 0; j <= t; ++j) {
    shares.push_back(scale_ * Dot(q, keys.values.data() + j * head_k, head_k));
    off.push_back(ScoreError(q, t, keys, j));
  }
  const double largest = *std::max_element(shares.begin(), shares.end());
  double most = 0;
  for (std::size_t j = 0; j < shares.size(); ++j) {
    off[j] += kSingle * (2 * std::fabs(shares[j]) + std::fabs(largest) + 4);
    most = std::max(most, off[j]);
  }
  Softmax(shares);
  std::vector<double> context(static_cast<std::size_t>(rank_), 0.0);
  for (std::int64_t j = 0; j <= t; ++j) {
    AddScaled(shares[static_cast<std::size_t>(j)],
              layer_.k.cached.data() + (b * tokens_ + j) * rank_, rank_, context.data());
  }
  double* const noise = noise_.data() + ((b * heads_ + h) * tokens_ + t) * v_dim_;
  const double sums = kSingle * (4 + std::sqrt(static_cast<double>(t + 1)));
  for (std::int64_t e = 0; e < v_dim_; ++e) {
    const double* const weights = Weights(h * (nope_ + v_dim_) + nope_ + e);
    const double out = Dot(weights, context.data(), rank_);
    double errors = 0, by_scores = 0;
    for (std::int64_t i = 0; i < rank_; ++i) {
      errors += Square(ErrorOfWeight(weights[i]) * context[static_cast<std::size_t>(i)]);
    }
    for (std::size_t j = 0; j < shares.size(); ++j) {
      const std::size_t at = j * static_cast<std::size_t>(v_dim_) + static_cast<std::size_t>(e);
      errors += Square(shares[j]) * values.own[at];
      by_scores += shares[j] * std::expm1(off[j]) * std::fabs(values.values[at] - out);
    }
    noise[e] = std::exp(most) * by_scores + std::exp(2 * most) * kDeviations * std::sqrt(errors) +
               sums * std::fabs(out);
  }
}

}  // namespace lariat::session
