// One instruction set's functions; compiled once for each, with its flags and its name as JSPEC_SET.
#include "attention.h"
#include "kernels.h"
#include "product.h"
#include "recurrence.h"
#include "top.h"

namespace jspec {
extern const Kernels JSPEC_SET;
const Kernels JSPEC_SET = {&product, &attend, &recur, &replay, &convolve, &top};
}  // namespace jspec
