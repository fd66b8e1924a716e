/* A stand-in for NVIDIA's Pyxis: the options that it adds to srun, read by Slurm's own parser and carried to the node by Slurm itself.
 * It starts no container. What was asked for is in the task's environment, as STANDIN_<OPTION>. */
#include <slurm/spank.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

SPANK_PLUGIN(pyxis, 1);

static const char *names[] = {"STANDIN_IMAGE", "STANDIN_MOUNTS", "STANDIN_WORKDIR", "STANDIN_NO_HOME"};
static char *values[4];

static int take(int which, const char *text, int remote) {
    (void)remote;
    free(values[which]);
    values[which] = strdup(text ? text : "yes");
    return values[which] ? 0 : -1;
}

struct spank_option spank_options[] = {
    {"container-image", "IMAGE", "stand-in for Pyxis: the image", 1, 0, take},
    {"container-mounts", "SRC:DST[:FLAGS],...", "stand-in for Pyxis: what is mounted", 1, 1, take},
    {"container-workdir", "PATH", "stand-in for Pyxis: where the task starts", 1, 2, take},
    {"no-container-mount-home", NULL, "stand-in for Pyxis: without the home", 0, 3, take},
    SPANK_OPTIONS_TABLE_END,
};

int slurm_spank_task_init(spank_t spank, int argc, char **argv) {
    (void)argc, (void)argv;
    for (int which = 0; which < 4; which++)
        if (values[which] && spank_setenv(spank, names[which], values[which], 1) != ESPANK_SUCCESS)
            return -1;
    return 0;
}
