// SPDX-License-Identifier: Apache-2.0
// Faults of RoPE that users of other KV caches reported (K01..K40: tracker numbers in each case).
// Inputs and right values were worked out apart from this project; where the fault's own value is
// known, the test also says that ours is not that one. Single rows are rotated by the reference,
// from tables of FillRopeTable.
#include <cmath>
#include <cstring>
#include <vector>

#include "lariat/rope.h"
#include "reference/rope_ref.h"
#include "support/catch.h"

namespace lariat {
namespace {

using Row = std::vector<double>;

RopeFrequencies Plain(int rotary_dim, double theta = 10000.0) {
  RopeSpec spec;
  spec.rotary_dim = rotary_dim;
  spec.theta = theta;
  Result<RopeFrequencies> frequencies = ComputeRopeFrequencies(spec);
  REQUIRE(frequencies.ok());
  return *std::move(frequencies);
}

struct TableRow {
  std::vector<float> cos, sin;
};

TableRow RowAt(const RopeFrequencies& frequencies, std::int64_t position) {
  const std::vector<float> poison(frequencies.inv_freq.size(), 99.0F);
  TableRow row{poison, poison};
  FillRopeTable(frequencies, position, 1, row.cos, row.sin);
  return row;
}

Row Rotate(const Row& x, std::int64_t position, const RopeFrequencies& frequencies,
           RopeStyle style = RopeStyle::kHalf) {
  const TableRow row = RowAt(frequencies, position);
  return reference::RotateRow(x, row.cos.data(), row.sin.data(), static_cast<int>(row.cos.size()),
                              style == RopeStyle::kInterleaved);
}

double Distance(const Row& a, const Row& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::fabs(a[i] - b[i]));
  return most;
}

// Each of the two products of a turned element carries its table entry's error, at most 2^-25
// (half a place of fp32 below 1); the angle's error in double is far below that here. Elements of
// these cases are 8 at most.
constexpr double kRowBound = 2 * 8 * 0x1p-25;

TEST_CASE("K01, K03: the pairing is the tensor's, and position 0 cannot tell") {
  const Row x = {1, 2, 3, 4};
  const RopeFrequencies frequencies = Plain(4);
  struct Case {
    std::int64_t position;
    Row half, interleaved;
  };
  const std::vector<Case> cases = {
      {0, {1, 2, 3, 4}, {1, 2, 3, 4}},
      {1,
       {-1.9841106485555495, 1.9599006674966641, 2.4623779024123156, 4.019799668334995},
       {-1.1426396637476532, 1.9220755965441758, 2.9598506679133294, 4.029799501669162}},
      {3,
       {-1.413352520780047, 1.879118066687993, -2.828857481741469, 4.058191135400943},
       {-1.27223251272018, -1.8388649851410237, 2.8786681004369807, 4.088186635603438}}};
  for (const Case& c : cases) {
    CAPTURE(c.position);
    const Row half = Rotate(x, c.position, frequencies, RopeStyle::kHalf);
    const Row interleaved = Rotate(x, c.position, frequencies, RopeStyle::kInterleaved);
    CHECK(Distance(half, c.half) <= kRowBound);
    CHECK(Distance(interleaved, c.interleaved) <= kRowBound);
    if (c.position == 0) {
      CHECK(half == x);
      CHECK(interleaved == x);
    } else {
      CHECK(Distance(half, c.interleaved) > 0.1);
    }
    // half(x[0,2,1,3]) is interleaved(x) in that order.
    const Row permuted = Rotate({1, 3, 2, 4}, c.position, frequencies, RopeStyle::kHalf);
    CHECK(permuted == Row{interleaved[0], interleaved[2], interleaved[1], interleaved[3]});
  }
}

TEST_CASE("K05: a table of fp32 is precise enough, and ours is as good as fp32 gets") {
  const RopeFrequencies frequencies = Plain(128);
  Row x(128);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(0.37 * static_cast<double>(i + 1));
  double worst = 0;
  for (const std::int64_t position : {1, 77, 1000, 4095, 32767}) {
    std::vector<double> cos, sin;
    for (const double f : frequencies.inv_freq) {
      cos.push_back(std::cos(static_cast<double>(position) * f));
      sin.push_back(std::sin(static_cast<double>(position) * f));
    }
    const Row exact = reference::RotateRow(x, cos.data(), sin.data(), 64, false);
    worst = std::max(worst, Distance(Rotate(x, position, frequencies), exact));
  }
  CHECK(worst < 2e-7);
  // The same tables make the same error; the angles' own, 32767 * 2^-53, is what may differ.
  CHECK(std::fabs(worst - 4.2578932601955444e-08) <= 2 * 32767 * 0x1p-53);
}

TEST_CASE("K06: making a table leaves the frequencies as they were") {
  const RopeFrequencies frequencies = Plain(128);
  const RopeFrequencies before = frequencies;
  const TableRow first = RowAt(frequencies, 4095);
  const TableRow second = RowAt(frequencies, 4095);
  CHECK(frequencies.inv_freq == before.inv_freq);
  CHECK(std::memcmp(first.cos.data(), second.cos.data(), 64 * sizeof(float)) == 0);
  CHECK(std::memcmp(first.sin.data(), second.sin.data(), 64 * sizeof(float)) == 0);
}

TEST_CASE("K07: large angles are as good as small ones") {
  const RopeFrequencies frequencies = Plain(8);
  struct Case {
    std::int64_t position;
    Row cos, sin;
    double fp32_angle_error;  // what an angle formed in fp32 would cost
  };
  const std::vector<Case> cases = {
      {40,
       {-0.6669380616522618, -0.6536436208636119, 0.921060994002885, 0.999200106660978},
       {0.7451131604793488, -0.7568024953079284, 0.3894183423086505, 0.03998933418663416},
       2.1959805474036642e-08},
      {2000,
       {-0.3674595491008314, 0.4871876750070059, 0.40808206181339196, -0.4161468365471424},
       {0.9300395044161369, -0.8732972972139945, 0.9129452507276276, 0.9092974268256816},
       0.0},
      {16000,
       {-0.9913814344683066, -0.5983634637950124, -0.9756293127952375, -0.9576594803233848},
       {0.1310070661894319, -0.8012247906768956, 0.21942525837900476, -0.28790331666506536},
       0.0},
      {48039,
       {-0.6163210234868163, -0.9191683189208937, -0.962783882319559, -0.6097032343820579},
       {-0.7874950133227279, -0.3938649533687126, 0.27027244762586844, -0.7926297786382098},
       8.976440959801435e-05},
      {131071,
       {-0.8179834993879491, 0.930342989844258, -0.7863836902572385, 0.6403123763117509},
       {-0.5752416837547892, 0.36669049789658675, -0.6177383683222273, -0.7681146143265332},
       0.0005450598674873186},
      {1048575,
       {0.7880422395289276, -0.8461904408119555, 0.632300167030053, 0.7538157843243756},
       {-0.6156211730587509, -0.5328806037739302, -0.7747234982713299, -0.6570858112175506},
       5.521287937382269e-05}};
  for (const Case& c : cases) {
    CAPTURE(c.position);
    const TableRow row = RowAt(frequencies, c.position);
    // Half a place of fp32 below 1, and the angle's rounding in double, here and there.
    const double bound = 0x1p-25 + 2 * static_cast<double>(c.position) * 0x1p-53;
    CHECK(Distance({row.cos.begin(), row.cos.end()}, c.cos) <= bound);
    CHECK(Distance({row.sin.begin(), row.sin.end()}, c.sin) <= bound);
    if (c.fp32_angle_error > 1e-6) CHECK(bound < c.fp32_angle_error);
  }
}

TEST_CASE("K08, K09, K10: a longer table goes on exactly, without clamp or wrap") {
  const RopeFrequencies frequencies = Plain(8);
  const Row x = {1, -2, 3, -4, 5, -6, 7, -8};
  const Row last = {4.923130055326807,   4.408211527451248,   -2.2185533249582843,
                    -4.2075096798899505, -1.3277011931672988, -4.535159438128491,
                    -7.285466432859088,  7.892836137513078};
  const Row past = {3.7772005515269216, 4.838949292987169,  -2.1455889481261887, -4.215400410957329,
                    3.425311079821031,  -4.072415713050299, -7.307287326065587,  7.888624682116699};
  const Row far = {4.888455158309406,  -5.5128360424101475, -5.345520564928623, 3.027886608849049,
                   1.4501745292198986, -3.0997804389188,    5.424519323398634,  8.416169121634413};
  const double bound = kRowBound + 2 * 8 * 40959 * 0x1p-53;
  CHECK(Distance(Rotate(x, 4095, frequencies), last) <= bound);
  CHECK(Distance(Rotate(x, 4096, frequencies), past) <= bound);
  CHECK(Distance(Rotate(x, 40959, frequencies), far) <= bound);
  CHECK(Distance(Rotate(x, 4096, frequencies), last) > 1e-2);  // clamped
  CHECK(Distance(Rotate(x, 4096, frequencies), x) > 1e-2);     // wrapped to 0

  // K10: a longer limit only adds rows.
  std::vector<float> cos32(32 * 4), sin32(32 * 4), cos64(64 * 4), sin64(64 * 4);
  FillRopeTable(frequencies, 0, 32, cos32, sin32);
  FillRopeTable(frequencies, 0, 64, cos64, sin64);
  CHECK(std::memcmp(cos32.data(), cos64.data(), cos32.size() * sizeof(float)) == 0);
  CHECK(std::memcmp(sin32.data(), sin64.data(), sin32.size() * sizeof(float)) == 0);
}

TEST_CASE("K11, K12, K13: llama3 keeps, blends in frequency and divides") {
  struct Case {
    int rotary_dim;
    double factor;
    std::size_t first_blended, first_divided;
    std::vector<double> blended, blended_in_wavelength;
    double last, last_if_ignored;
  };
  const std::vector<Case> cases = {
      {128,
       8.0,
       29,
       35,
       {0.002166570763503359, 0.0013718935677611381, 0.0008567514129196321, 0.0005248461609929547,
        0.00031269375038406517, 0.00017850781276799646},
       {0.0018646174812787086, 0.0010520226548869126, 0.0006222032785009169, 0.0003792936807777658,
        0.0002360511781079711, 0.0001490928864975462},
       3.068925988914511e-07,
       2.455140791131609e-06},
      {64,
       32.0,
       15,
       18,
       {0.0012905479282092635, 0.0004295567965593682, 9.708287802627677e-05},
       {0.00038450215529326035, 0.00010809091268930696, 3.8387581809303836e-05},
       9.41830672543491e-08,
       3.013858152139171e-06}};
  for (const Case& c : cases) {
    CAPTURE(c.rotary_dim);
    RopeSpec spec;
    spec.type = RopeType::kLlama3;
    spec.rotary_dim = c.rotary_dim;
    spec.theta = 500000.0;
    spec.factor = c.factor;
    spec.low_freq_factor = 1.0;
    spec.high_freq_factor = 4.0;
    spec.original_max_position_embeddings = 8192;
    const Result<RopeFrequencies> got = ComputeRopeFrequencies(spec);
    REQUIRE(got.ok());
    CHECK(got->attention_factor == 1.0);
    const std::vector<double> plain = Plain(c.rotary_dim, 500000.0).inv_freq;
    const std::vector<double>& f = got->inv_freq;
    REQUIRE(f.size() == plain.size());
    REQUIRE(c.first_divided - c.first_blended == c.blended.size());
    for (std::size_t i = 0; i < c.first_blended; ++i) CHECK(f[i] == plain[i]);
    for (std::size_t i = c.first_divided; i < f.size(); ++i) CHECK(f[i] == plain[i] / c.factor);
    for (std::size_t i = 0; i < c.blended.size(); ++i) {
      const double value = f[c.first_blended + i];
      CAPTURE(i, value);
      // Two roads in double: the turns differ by some 2^-50, which a blend multiplies by the
      // factor at most (32 = 2^5).
      CHECK(std::fabs(value / c.blended[i] - 1) <= 0x1p-45);
      CHECK(std::fabs(value / c.blended_in_wavelength[i] - 1) > 0.1);
    }
    CHECK(std::fabs(f.back() / c.last - 1) <= 0x1p-48);
    CHECK(f.back() < c.last_if_ignored / 2);

    // K13: short prompts cannot tell, position 8000 can.
    const RopeFrequencies unscaled = Plain(c.rotary_dim, 500000.0);
    const TableRow scaled_row = RowAt(*got, 8000);
    const TableRow plain_row = RowAt(unscaled, 8000);
    const Row scaled_cos(scaled_row.cos.begin(), scaled_row.cos.end());
    CHECK(Distance(scaled_cos, {plain_row.cos.begin(), plain_row.cos.end()}) > 0.5);
  }
}

TEST_CASE("K33, K34, K35: partial rotary takes everything from rotary_dim") {
  const Row x = {1, 2, 3, 4, 5, 6, 7, 8};
  const RopeFrequencies partial = Plain(4);
  CHECK(partial.inv_freq.size() == 2);
  const Row got = Rotate(x, 700, partial);
  const double bound = kRowBound + 2 * 8 * 700 * 0x1p-53;
  CHECK(Distance(got, {-2.4710158959708695, -1.1201418861885468, -1.9733424542788516,
                       4.329582214810797, 5, 6, 7, 8}) <= bound);
  for (std::size_t i = 4; i < 8; ++i) CHECK(got[i] == x[i]);  // bit for bit
  // K33: the whole head turned. K34: exponents from the head, partner half a head away.
  CHECK(Distance(got, {-3.5589569426976206, -3.376705683174736, -2.3371994280016093,
                       -2.094372748763574, -3.651551106040337, 5.347696581633577, 7.2482755765595,
                       8.695608247226673}) > 0.1);
  CHECK(Distance(got, {-2.4710158959708695, -1.8289243200589573, -1.9733424542788516,
                       4.081058175460978, 5, 6, 7, 8}) > 0.1);
  CHECK(Distance(got, {-3.5589569426976206, -3.376705683174736, 3, 4, -3.651551106040337,
                       5.347696581633577, 7, 8}) > 0.1);
  // K35: 96 of 128 elements turn, in 48 pairs.
  CHECK(Plain(96).inv_freq.size() == 48);
}

TEST_CASE("K40: a table of the same length at another offset is another table") {
  const RopeFrequencies frequencies = Plain(4);
  const Row x = {1, 2, 3, 4};
  CHECK(Rotate(x, 0, frequencies) == x);
  CHECK(Distance(Rotate(x, 5, frequencies), {3.160435009452642, 1.7975838437072191,
                                             -0.10793771827345966, 4.094959380121222}) <=
        kRowBound);
}

}  // namespace
}  // namespace lariat
