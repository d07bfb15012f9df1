#define HCOMM_LEVEL avx512
#include "kernels/reduce.inc"
