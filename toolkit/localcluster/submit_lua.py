"""Render a site's rules as a job_submit.lua, which slurmctld runs for every job. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from toolkit.model.site import Site, SitePartition

# The test of the plugin whether an option of sbatch was given.
_GIVEN = {
    "mem": "job.min_mem_per_node ~= nil or job.min_mem_per_cpu ~= nil",
    "account": "job.account ~= nil",
    "qos": "job.qos ~= nil",
    "constraint": "job.features ~= nil",
    "nodelist": "job.req_nodes ~= nil",
    "exclude": "job.exc_nodes ~= nil",
    "reservation": "job.reservation ~= nil",
    "comment": "job.comment ~= nil",
    "partition": "job.partition ~= nil",
    "time": "job.time_limit ~= nil and job.time_limit ~= slurm.NO_VAL",
}

_LUA = """\
-- Written by toolkit cluster up --like {name}: the rules of that site, for every job.
local COMMENT = {comment}
local REQUIRED = {required}
local FORBIDDEN = {forbidden}
local CLOSED = {closed}
local MOST = {most}
local DEFAULT = {default}
local DIRECTORY = {directory}

local function has(list, word)
    for _, one in ipairs(list) do
        if one == word then return true end
    end
    return false
end

local function comment_problem(text)
    if text == nil or text == "" then
        return COMMENT.required and "this site requires a comment" or nil
    end
    if COMMENT.fields == nil then
        if #COMMENT.words > 0 and not has(COMMENT.words, text) then
            return "this is none of the site's comments: " .. text
        end
        return nil
    end
    local given = {{}}
    for part in (text .. ";"):gmatch("([^;]*);") do
        local key, value = part:match("^([^=]*)=(.*)$")
        if key == nil then return "this is not <key>=<value>: " .. part end
        if COMMENT.fields[key] == nil then
            return "this site knows no such key in a comment: " .. key
        end
        given[key] = value
    end
    for key, values in pairs(COMMENT.fields) do
        if given[key] == nil then return "the comment lacks " .. key .. "=" end
        if #values > 0 and not has(values, given[key]) then
            return "this is none of the site's values of " .. key .. ": " .. given[key]
        end
    end
    return nil
end

local function option_problem(job)
    for name, rule in pairs(FORBIDDEN) do
        if rule.given(job) then return "--" .. name .. " is not to be used: " .. rule.why end
    end
    for name, rule in pairs(REQUIRED) do
        if not rule.given(job) then return "--" .. name .. " is needed: " .. rule.why end
    end
    return nil
end

-- One user's jobs in a partition that have not ended; slurmctld shows them up to a second late.
local function queued(partition, uid)
    local count = 0
    for _, one in pairs(slurm.jobs) do
        if one.user_id == uid and one.partition == partition and one.job_state % 256 < 3 then
            count = count + 1
        end
    end
    return count
end

local function place_problem(job, uid)
    if DIRECTORY ~= "" and (job.work_dir .. "/"):sub(1, #DIRECTORY + 1) ~= DIRECTORY .. "/" then
        return "jobs are taken from " .. DIRECTORY .. " only"
    end
    for partition in ((job.partition or DEFAULT) .. ","):gmatch("([^,]*),") do
        if has(CLOSED, partition) then return partition .. " takes no batch jobs" end
        if MOST[partition] ~= nil and queued(partition, uid) >= MOST[partition] then
            return "one user may have " .. MOST[partition] .. " jobs in " .. partition
        end
    end
    return nil
end

function slurm_job_submit(job, _, uid)
    local problem = option_problem(job) or place_problem(job, uid)
    if problem == nil and COMMENT ~= nil then problem = comment_problem(job.comment) end
    if problem == nil then return slurm.SUCCESS end
    slurm.log_user("%s", problem)
    return slurm.ERROR
end

function slurm_job_modify()
    return slurm.SUCCESS
end

return slurm.SUCCESS
"""


def can_check(option: str) -> bool:
    """Return whether the plugin can detect that an option was given."""
    return option in _GIVEN


def text(
    site: Site,
    partitions: Mapping[str, SitePartition],
    *,
    default: str,
    directory: str = "",
) -> str:
    """Return the file.

    Args:
        site: whose rules they are.
        partitions: of the cluster.
        default: partition of jobs that name none.
        directory: that jobs must be submitted from; empty: any.
    """
    most = {
        name: partition.jobs_submitted
        for name, partition in partitions.items()
        if partition.jobs_submitted
    }
    return _LUA.format(
        name=" ".join(site.name.split()),
        comment=_comment(site),
        required=_options({name: rule.why for name, rule in site.required.items()}),
        forbidden=_options({name: rule.why for name, rule in site.forbidden.items()}),
        closed=_list([name for name, partition in partitions.items() if not partition.batch]),
        most="{ "
        + " ".join(f"[{_word(name)}] = {number}," for name, number in most.items())
        + " }",
        default=_word(default),
        directory=_word(directory),
    )


def _comment(site: Site) -> str:
    rule = site.comment
    if rule is None:
        return "nil"
    fields = "nil"
    if rule.fields:
        fields = (
            "{ "
            + " ".join(f"[{_word(key)}] = {_list(values)}," for key, values in rule.fields.items())
            + " }"
        )
    required, words = str(rule.required).lower(), _list(rule.words)
    return f"{{ required = {required}, words = {words}, fields = {fields} }}"


def _options(rules: Mapping[str, str]) -> str:
    rows = (
        f"[{_word(name)}] = "
        f"{{ why = {_word(why)}, given = function(job) return {_GIVEN[name]} end }},"
        for name, why in rules.items()
        if name in _GIVEN
    )
    return "{ " + " ".join(rows) + " }"


def _list(words: Sequence[str]) -> str:
    return "{ " + ", ".join(map(_word, words)) + " }" if words else "{}"


def _word(text: str) -> str:
    """Return a string of Lua 5.1: control characters by number, all others unchanged."""
    quoted = (
        f"\\{ord(letter):03d}" if ord(letter) < 32 or letter in '"\\\x7f' else letter
        for letter in text
    )
    return '"' + "".join(quoted) + '"'
