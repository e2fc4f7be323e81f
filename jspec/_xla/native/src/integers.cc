// Products of integers with one instruction set; see kernels.cc.
#if defined(__AMX_INT8__)
#include "tiles.h"
#else
#include "superintegers.h"
#endif

namespace jspec {
extern const Integers JSPEC_SET;
const Integers JSPEC_SET = {&state_bytes, &parts, &prepare, &any_rounded_product};
}  // namespace jspec
