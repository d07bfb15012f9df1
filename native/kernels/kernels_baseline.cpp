#define HCOMM_LEVEL baseline
#include "kernels/reduce.inc"
#include "kernels/quantise.inc"
