-- Written by toolkit cluster up --like neuron: the rules of that site, for every job.
local COMMENT = { ["required"] = true, ["words"] = {  }, ["fields"] = { ["field"] = { "agenticai", "robotics", "aim", "nlp", "cv", "speech", "recsys", "multimodal", "sciai", "efficientai", "healthai", "finai", "misc" }, ["appl"] = { "pytorch", "pytorch-ddp", "pytorch-fsdp", "deepspeed", "megatron-lm", "jax", "tensorflow", "tensorrt", "ollama", "vllm", "triton", "jupyter", "r", "misc" }, }, }
local REQUIRED = {  }
local FORBIDDEN = { ["mem"] = "memory goes with the cores here: 95 % of the node's memory, shared out by cores", }
local CLOSED = { "jupyter" }
local MOST = { ["cas_v100_4"] = 20, }
local DEFAULT = "cas_v100_4"
local DIRECTORY = ""

-- Whether an option of sbatch was given.
local GIVEN = {
    mem = function(job) return job.min_mem_per_node ~= nil or job.min_mem_per_cpu ~= nil end,
    account = function(job) return job.account ~= nil end,
    qos = function(job) return job.qos ~= nil end,
    constraint = function(job) return job.features ~= nil end,
    nodelist = function(job) return job.req_nodes ~= nil end,
    exclude = function(job) return job.exc_nodes ~= nil end,
    reservation = function(job) return job.reservation ~= nil end,
    comment = function(job) return job.comment ~= nil end,
    partition = function(job) return job.partition ~= nil end,
    time = function(job) return job.time_limit ~= nil and job.time_limit ~= slurm.NO_VAL end,
}

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
    local given = {}
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
    for name, why in pairs(FORBIDDEN) do
        if GIVEN[name](job) then return "--" .. name .. " is not to be used: " .. why end
    end
    for name, why in pairs(REQUIRED) do
        if not GIVEN[name](job) then return "--" .. name .. " is needed: " .. why end
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
