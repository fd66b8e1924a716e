# shellcheck shell=bash
# What `toolkit cluster shell` starts bash with: the user's own settings, and a prompt that says where one is.
if [ -r ~/.bashrc ]; then
    # shellcheck source=/dev/null
    . ~/.bashrc
fi
PS1="(cluster ${TOOLKIT_CLUSTER:-local}) ${PS1:-\\u@\\h:\\w\\$ }"
