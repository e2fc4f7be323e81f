// Products of integers with one instruction set; see kernels.cc.
#include "integers.h"

namespace jspec {
extern const Integers JSPEC_SET;
const Integers JSPEC_SET = {&state_bytes, &round_row, &rounded_product};
}  // namespace jspec
