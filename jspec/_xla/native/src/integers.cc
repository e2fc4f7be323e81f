// Products of integers with one instruction set; see kernels.cc.
#include "superintegers.h"

namespace jspec {
extern const Integers JSPEC_SET;
const Integers JSPEC_SET = {&state_bytes, &round_row, &any_rounded_product};
}  // namespace jspec
