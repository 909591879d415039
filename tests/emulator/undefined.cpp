// What the code that -fsanitize=undefined -fno-sanitize-recover puts before an undefined operation calls when it is
// about to happen. Ours, instead of the compiler's own runtime library, so that a launch fails with words rather than
// the process with a signal. Called from host code, they do end the process.
#include <string>

#include "emulator.h"

namespace {

// Every report begins with the place in the source (see compiler-rt/lib/ubsan/ubsan_value.h in LLVM).
struct Place {
  const char* file;
  unsigned line, column;
};

[[noreturn]] void report(const char* what, const void* data) {
  const Place& place = *static_cast<const Place*>(data);
  const std::string numbers = std::to_string(place.line) + ":" + std::to_string(place.column);
  emulator::fault("undefined behaviour at " + std::string(place.file ? place.file : "?") + ":" + numbers + ": " + what);
}

}  // namespace

#define HANDLER(name, what) \
  extern "C" [[noreturn]] void __ubsan_handle_##name(void* data) { report(what, data); }

extern "C" [[noreturn]] void __ubsan_handle_type_mismatch_v1_abort(void* data, uintptr_t address);
extern "C" [[noreturn]] void __ubsan_handle_type_mismatch_v1_abort(void* data, uintptr_t address) {
  if (address == 0) report("access through a null pointer", data);
  report("access to an address that is not aligned for its type, or too small an object", data);
}

HANDLER(add_overflow_abort, "a sum overflows")
HANDLER(sub_overflow_abort, "a difference overflows")
HANDLER(mul_overflow_abort, "a product overflows")
HANDLER(negate_overflow_abort, "a negation overflows")
HANDLER(divrem_overflow_abort, "division by zero, or a quotient that overflows")
HANDLER(shift_out_of_bounds_abort, "a shift by too many bits, or of a negative number")
HANDLER(out_of_bounds_abort, "an index outside its array")
HANDLER(builtin_unreachable, "code that cannot be reached was")
HANDLER(missing_return, "a function ends without its result")
HANDLER(vla_bound_not_positive_abort, "an array without elements")
HANDLER(float_cast_overflow_abort, "a floating number too large for the integer type")
HANDLER(load_invalid_value_abort, "a value that its type (bool or enum) cannot have")
HANDLER(invalid_builtin_abort, "zero bits asked for their first one")
HANDLER(nonnull_arg_abort, "a null pointer for an argument that must not be null")
HANDLER(nonnull_return_v1_abort, "a null pointer returned where it must not be")
HANDLER(nullability_arg_abort, "a null pointer for an argument that must not be null")
HANDLER(pointer_overflow_abort, "a pointer moved past the end of memory, or from null")
HANDLER(alignment_assumption_abort, "a pointer less aligned than promised")
HANDLER(function_type_mismatch_abort, "a function called as one of another type")
HANDLER(function_type_mismatch_v1_abort, "a function called as one of another type")
