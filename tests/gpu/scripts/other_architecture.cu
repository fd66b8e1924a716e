// A program with machine code for one other kind of GPU only, and without the form that a driver can compile for the one at hand.
#include <cstdio>

__global__ void nothing() {}

int main() {
    nothing<<<1, 1>>>();
    cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess) error = cudaDeviceSynchronize();
    fprintf(stderr, "CUDA error: %s\n", cudaGetErrorString(error));
    return error == cudaSuccess ? 0 : 1;
}
