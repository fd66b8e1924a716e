/* The smallest program of MPI: who is there, and one sum over all. The same as hello.py, in C. */
#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv) {
    int rank, size, total, length;
    char host[MPI_MAX_PROCESSOR_NAME];

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Get_processor_name(host, &length);
    MPI_Allreduce(&rank, &total, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD); /* 0 + 1 + 2 + ... */

    printf("rank %d of %d  host %s\n", rank, size, host);
    fflush(stdout);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("{\"world_size\": %d, \"sum\": %d, \"expected\": %d}\n", size, total, size * (size - 1) / 2);
    MPI_Finalize();
    return total == size * (size - 1) / 2 ? 0 : 1;
}
