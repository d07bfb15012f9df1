#define HCOMM_LEVEL avx2
#include "kernels/reduce.inc"
