#define HCOMM_LEVEL baseline
#include "kernels/reduce.inc"
