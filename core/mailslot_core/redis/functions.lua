#!lua name=mailslot_v1
-- The atomic acts on one session, or on one partition of sessions.
--
--   ARGV, KEYS --> open --> check --> append*, fold* --> finish --> reply
--
-- Rule 1: an act reads and checks everything first; after its first write nothing can fail.
-- Rule 2: `append` writes the event, publishes its notice, and folds it: FOLD below is the twin of
--         `session.FOLD`, the acts are the twins of those in inbox, turn and goal. tests/conformance holds them together.
-- Rule 3: `finish` derives what follows from the state alone: ready queue, active set, doorbell, idle notice.
-- Rule 4: function names carry the version, so old and new workers can run side by side. A changed meaning is a new name.
-- Rule 5: event data that a caller made is passed through as bytes; only data made here is packed here.
--
-- KEYS of a session act:  1 state  2 ledger  3 turn lane  4 step lane  5 messages  6 later, then those of its partition
-- KEYS of a partition:    ready active bell leases forget sessions idle goals counts due dead erase slot
-- ARGV always begins with the session id, or with the prefix of session keys for an act on a partition.
--
-- Replies are arrays: {'ok', ...}, {'refused', code, sentence}, {'fenced'}.

local VERSION = '\1'
local BELL_MAX = 64          -- rings kept; a worker that finds more work rings again, so more would be noise
local IDLE_NOTICES_MAX = 10000
local STALE_MAX = 128        -- stale ready entries dropped in one acquire, which bounds its time
local SWEEP_MAX = 200        -- sessions looked at in one sweep call, likewise
local LETTERS_MAX = 20       -- dead letters looked at in one sweep call, likewise
local ERASE_MAX = 2000       -- message records dropped in one erase call, likewise
local SLOT_MS = 600000       -- how long a slot's last answer can be asked for again

-- == encoding ==============================================================================================

local function int(n) return string.format('%d', n) end
local function encode(value) return VERSION .. cmsgpack.pack(value) end
local function decode(data) return cmsgpack.unpack(string.sub(data, 2)) end

-- == opening ===============================================================================================

local FIELDS = { 'seq', 'time', 'status', 'idleSeq', 'epoch', 'owner', 'lease', 'leaseMs', 'call', 'back', 'recovered',
  'turn', 'step', 'phase', 'attempt', 'claimed', 'calls', 'cancel', 'hold', 'goal', 'goalMessage', 'queued', 'admitted',
  'rejected', 'cancelled', 'expired', 'dead', 'followups', 'steers', 'injects', 'inputTokens', 'outputTokens', 'cost',
  'agent', 'onFailure', 'closed', 'created', 'outcome', 'goalRevision', 'retryAt', 'waitingBytes', 'closing', 'delayed',
  'born', 'expiring', 'claims', 'letters' }
local PLACE = {} -- where each stands there
for i = 1, #FIELDS do PLACE[FIELDS[i]] = i end
local PACKED = { claimed = true, calls = true, goal = true, claims = true }

local function partition_keys(keys, at)
  return { ready = keys[at], active = keys[at + 1], bell = keys[at + 2], leases = keys[at + 3], forget = keys[at + 4],
    sessions = keys[at + 5], idle = keys[at + 6], goals = keys[at + 7], counts = keys[at + 8], due = keys[at + 9],
    dead = keys[at + 10], erase = keys[at + 11], slot = keys[at + 12] }
end

local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

local function unpacked(value, default)
  if not value or value == '' then return default end
  return cmsgpack.unpack(value)
end

-- FIELDS as they were read, in their order, and what each one is when it is absent. A table of one piece, because a
-- table that grows field by field is made anew six times, and every act reads a state.
local function state(raw)
  local num = tonumber
  return {
    seq = num(raw[1] or 0), time = num(raw[2] or 0), status = raw[3] or 'idle', idleSeq = num(raw[4] or 0),
    epoch = num(raw[5] or 0), owner = raw[6] or '', lease = num(raw[7] or 0), leaseMs = num(raw[8] or 0),
    call = num(raw[9] or 0), back = raw[10] or 'resume', recovered = raw[11] or '', turn = num(raw[12] or 0),
    step = num(raw[13] or 0), phase = raw[14] or 'closed', attempt = num(raw[15] or 1),
    claimed = unpacked(raw[16], {}), calls = unpacked(raw[17], {}), cancel = raw[18] or '', hold = raw[19] or '',
    goal = unpacked(raw[20], ''), goalMessage = raw[21] or '', queued = num(raw[22] or 0), admitted = num(raw[23] or 0),
    rejected = num(raw[24] or 0), cancelled = num(raw[25] or 0), expired = num(raw[26] or 0), dead = num(raw[27] or 0),
    followups = num(raw[28] or 0), steers = num(raw[29] or 0), injects = num(raw[30] or 0),
    inputTokens = num(raw[31] or 0), outputTokens = num(raw[32] or 0), cost = raw[33] or '', agent = raw[34] or '',
    onFailure = raw[35] or 'continue', closed = raw[36] or '', created = raw[37] or '', outcome = raw[38] or '',
    goalRevision = num(raw[39] or 0), retryAt = num(raw[40] or 0), waitingBytes = num(raw[41] or 0),
    closing = raw[42] or '', delayed = num(raw[43] or 0), born = num(raw[44] or 0),
    expiring = num(raw[45] or 0), claims = unpacked(raw[46], {}), letters = num(raw[47] or 0),
  }
end

-- A message's record (see below), false when there is none. It is read once an act.
local function message(a, mid)
  local record = a.messages[mid]
  if record == nil then
    local raw = redis.call('HGET', a.k.messages, mid)
    record = raw and cmsgpack.unpack(raw) or false
    a.messages[mid] = record
  end
  return record
end

local function open_at(sid, k, p)
  local raw = redis.call('HMGET', k.state, unpack(FIELDS))
  local s = state(raw)
  local a = { sid = sid, k = k, p = p, s = s, raw = raw, now = now_ms(), changed = {}, messages = {}, seen = {}, gone = {} }
  if s.goalMessage ~= '' then message(a, s.goalMessage) end -- whatever changes the goal cancels it
  return a
end

local function open(keys, argv)
  local k = { state = keys[1], ledger = keys[2], turn = keys[3], step = keys[4], messages = keys[5], later = keys[6] }
  return open_at(argv[1], k, partition_keys(keys, 7))
end

-- The keys of a session that is found inside the act. They are touched before anything is written, so that on a Cluster
-- whose slot is moving the act fails here, cleanly.
local function touched(prefix, sid)
  local k = { state = prefix .. sid .. ':state', ledger = prefix .. sid .. ':ledger', turn = prefix .. sid .. ':turn',
    step = prefix .. sid .. ':step', messages = prefix .. sid .. ':messages', later = prefix .. sid .. ':later' }
  redis.call('EXISTS', k.state, k.ledger, k.turn, k.step, k.messages, k.later)
  return k
end

local function open_found(prefix, sid, p) return open_at(sid, touched(prefix, sid), p) end

-- True and what a reading function finds, or false when what is kept cannot be read: one damaged session must not stop its whole
-- partition. An error of a Cluster whose slot is moving is no damage.
local function sound(p, read, ...)
  local readable, found = pcall(read, ...)
  if readable then return true, found end
  local said = tostring(type(found) == 'table' and found.err or found)
  if string.find(said, 'TRYAGAIN') or string.find(said, 'MOVED') or string.find(said, 'ASK ') then error(found) end
  redis.call('HINCRBY', p.counts, 'damaged', 1)
  return false
end

local function open_sound(prefix, sid, p)
  local readable, a = sound(p, open_found, prefix, sid, p)
  return readable and a or nil
end

local function set(a, name, value)
  a.s[name] = value
  a.changed[name] = true
end

local function add(a, name, n) set(a, name, a.s[name] + n) end

-- == messages ==============================================================================================
-- A record is an array: 1 state 2 lane 3 wake 4 queuedSeq 5 bodySeq 6 place 7 goalId 8 turn 9 step 10 why 11 fingerprint
-- 12 due 0|1 13 notBefore 14 expiresAt (0: none) 15 size of the body in bytes
-- state: q queued, c claimed, a admitted, r rejected, x cancelled, e expired, d dead; lane: t next-turn, s next-step

-- The data of one event of the ledger.
local function event_data(a, seq)
  local entry = redis.call('XRANGE', a.k.ledger, int(seq) .. '-0', int(seq) .. '-0')
  return entry[1] and entry[1][2][8] or ''
end

local function keep(a, mid, record)
  a.messages[mid] = record
  redis.call('HSET', a.k.messages, mid, cmsgpack.pack(record))
end

local function lane_counter(record)
  if record[12] == 0 then return 'delayed' end
  if record[2] == 't' then return 'followups' end
  return record[3] == 1 and 'steers' or 'injects'
end

local function lane_key(a, record)
  if record[12] == 0 then return a.k.later end
  return record[2] == 't' and a.k.turn or a.k.step
end

-- When time alone changes a queued message: it becomes due, or it expires; 0 for never.
local function alarm(record)
  local not_before, expires = record[13], record[14]
  if record[12] == 0 and (expires == 0 or not_before < expires) then return not_before end
  return expires
end

-- Members of the due set sort by the seq of queueing where times are equal.
local function alarm_name(a, mid, record) return string.format('%016d', record[4]) .. '\0' .. a.sid .. '\0' .. mid end

-- Into its lane, or behind it while it is not due.
local function into_lane(a, mid, record)
  redis.call('ZADD', lane_key(a, record), record[6], mid)
  add(a, lane_counter(record), 1)
  if record[14] > 0 then add(a, 'expiring', 1) end
  local at = alarm(record)
  if at > 0 then redis.call('ZADD', a.p.due, at, alarm_name(a, mid, record)) end
end

local function out_of_lane(a, mid, record)
  redis.call('ZREM', lane_key(a, record), mid)
  add(a, lane_counter(record), -1)
  if record[14] > 0 then add(a, 'expiring', -1) end
  if record[13] > 0 or record[14] > 0 then redis.call('ZREM', a.p.due, alarm_name(a, mid, record)) end
end

local function leave_queue(a, mid, record)
  out_of_lane(a, mid, record)
  add(a, 'waitingBytes', -record[15])
  if a.s.goalMessage == mid then set(a, 'goalMessage', '') end
end

-- The claimed messages without those that left. Leaving only marks them, so that a step of thousands stays linear.
local function claimed(a)
  if next(a.gone) ~= nil then
    local left = {}
    for _, mid in ipairs(a.s.claimed) do if not a.gone[mid] then left[#left + 1] = mid end end
    a.s.claimed, a.gone = left, {}
  end
  return a.s.claimed
end

local function leave_claimed(a, mid)
  a.gone[mid] = true
  a.changed.claimed = true
end

-- == fold ==================================================================================================
-- FOLD[type](act, facts, seq, time): change the indexes by one event. The twin of session.FOLD.

local FOLD = {}

FOLD['session/created'] = function(a, f, seq, time)
  set(a, 'born', time)
  set(a, 'agent', f.agent)
  set(a, 'onFailure', f.onFailure)
  set(a, 'created', f.fingerprint)
  redis.call('ZADD', a.p.sessions, 0, a.sid)
end

FOLD['inbox/queued'] = function(a, f, seq, time)
  local due = f.notBefore <= time and 1 or 0
  local record = { 'q', f.lane, f.wake, seq, seq, seq, f.goal, 0, 0, '', f.fingerprint, due, f.notBefore, f.expiresAt, f.size }
  keep(a, f.messageId, record)
  into_lane(a, f.messageId, record)
  add(a, 'waitingBytes', f.size)
  add(a, 'queued', 1)
  if f.goal ~= '' then set(a, 'goalMessage', f.messageId) end
end

FOLD['inbox/replaced'] = function(a, f, seq)
  local record = message(a, f.messageId)
  add(a, 'waitingBytes', f.size - record[15])
  record[5], record[15] = seq, f.size
  keep(a, f.messageId, record)
end

-- The message is due, at the place of this event.
local function becomes_due(a, f, seq)
  local record = message(a, f.messageId)
  out_of_lane(a, f.messageId, record)
  record[2], record[6], record[12] = f.lane or record[2], seq, 1
  keep(a, f.messageId, record)
  into_lane(a, f.messageId, record)
end

FOLD['inbox/due'] = becomes_due
FOLD['inbox/moved'] = becomes_due

FOLD['inbox/claimed'] = function(a, f, seq)
  local all = {} -- not `unpack`: it fails at 8,000 values, which is after the first write
  for _, mid in ipairs(claimed(a)) do all[#all + 1] = mid end
  for _, mid in ipairs(f.messageIds) do
    local record = message(a, mid)
    leave_queue(a, mid, record)
    record[1] = 'c'
    keep(a, mid, record)
    all[#all + 1] = mid
  end
  set(a, 'claimed', all)
  a.s.claims[#a.s.claims + 1] = seq
  set(a, 'claims', a.s.claims)
end

local function settled(counter, letter)
  return function(a, f, seq, time)
    local record = message(a, f.messageId)
    if not record then return end -- added by an admission hook: never queued, nothing to settle
    if record[1] == 'c' then leave_claimed(a, f.messageId) else leave_queue(a, f.messageId, record) end
    record[1], record[8], record[9], record[10] = letter, f.turn or 0, f.step or 0, f.why or ''
    keep(a, f.messageId, record)
    add(a, counter, 1)
    -- What is dead may be redriven, so its record stays.
    if letter ~= 'd' then redis.call('ZADD', a.p.forget, time, a.sid .. '\0' .. f.messageId) end
    return record
  end
end

FOLD['inbox/rejected'] = settled('rejected', 'r')
FOLD['inbox/cancelled'] = settled('cancelled', 'x')
FOLD['inbox/expired'] = settled('expired', 'e')
FOLD['inbox/dead'] = settled('dead', 'd')
local admit = settled('admitted', 'a')

-- The message is a round of the goal that is there now, and not of one before it (semantics G3).
local function serves_goal(a, record)
  return a.s.goal ~= '' and a.s.goal.goalId == record[7]
end

FOLD['user/message'] = function(a, f, seq, time)
  local record = admit(a, f, seq, time)
  if record and serves_goal(a, record) then
    local goal = a.s.goal
    goal.rounds = goal.rounds + 1
    goal.spent.rounds = goal.rounds
    set(a, 'goal', goal)
  end
end

FOLD['agent/status'] = function(a, f, seq)
  set(a, 'status', f.status)
  if f.status == 'idle' then set(a, 'idleSeq', seq) end
end

FOLD['inbox/released'] = function(a) set(a, 'hold', '') end
FOLD['inbox/held'] = function(a, f) set(a, 'hold', f.cause) end

FOLD['turn/start'] = function(a, f)
  set(a, 'turn', f.turn)
  set(a, 'step', 0)
  set(a, 'phase', 'boundary')
  set(a, 'attempt', 1)
  set(a, 'cancel', '')
  set(a, 'recovered', '')
  set(a, 'claims', {})
end

FOLD['turn/recovered'] = function(a, f)
  set(a, 'attempt', f.attempt)
  set(a, 'retryAt', 0)
end

FOLD['turn/end'] = function(a)
  set(a, 'phase', 'closed')
  set(a, 'cancel', '')
  set(a, 'attempt', 1)
end

FOLD['step/start'] = function(a, f)
  set(a, 'step', f.step)
  set(a, 'phase', 'open')
end

FOLD['llm/retry'] = function(a, f, seq, time) set(a, 'retryAt', time + f.delay) end

FOLD['step/end'] = function(a)
  set(a, 'phase', 'boundary')
  set(a, 'retryAt', 0)
end

FOLD['assistant/message'] = function(a, f)
  local calls = {}
  for _, id in ipairs(f.calls) do calls[id] = 'asked' end
  set(a, 'calls', calls)
  set(a, 'phase', 'answered')
  set(a, 'retryAt', 0)
end

FOLD['tool/call'] = function(a, f)
  a.s.calls[f.callId] = 'started'
  set(a, 'calls', a.s.calls)
end

FOLD['tool/result'] = function(a, f)
  a.s.calls[f.callId] = nil
  set(a, 'calls', a.s.calls)
end

FOLD['cancel/requested'] = function(a, f)
  if f.turn and a.s.cancel == '' then set(a, 'cancel', f.cause) end
  if f.closing then set(a, 'closing', '1') end
end

FOLD['session/closed'] = function(a)
  set(a, 'closed', '1')
  set(a, 'closing', '')
end

FOLD['goal/change'] = function(a, f)
  if f.operation == 'clear' then set(a, 'goal', '') else set(a, 'goal', f.goal) end
  set(a, 'goalRevision', f.goal.revision)
  redis.call(a.s.goal ~= '' and a.s.goal.phase == 'active' and 'SADD' or 'SREM', a.p.goals, a.sid)
end

FOLD['usage/recorded'] = function(a, f)
  add(a, 'inputTokens', f.input)
  add(a, 'outputTokens', f.output)
  if f.cost >= 0 then set(a, 'cost', string.format('%.17g', (tonumber(a.s.cost) or 0) + f.cost)) end
end

local packed_kinds = {} -- event types as msgpack; there are some thirty

-- What the events of one act share: the time, the epoch, and the parts of their notices around seq, type and data. An
-- act of one epoch has one time, L1's max of now and the last event's.
local function stamp(a)
  local s, pack = a.s, cmsgpack.pack
  local time = math.max(a.now, s.time)
  a.stamp = { time = time, time_text = int(time), epoch = s.epoch, epoch_text = int(s.epoch),
    head = VERSION .. '\135\161v\1\169sessionId' .. pack(a.sid) .. '\164time' .. pack(time) .. '\165epoch' .. pack(s.epoch)
      .. '\163seq',
    channel = 'session.event.' .. a.sid }
  return a.stamp
end

-- Append one event: the ledger, the notice {v, sessionId, time, epoch, seq, type, data}, the indexes. `data` is its
-- packed data, or nil to pack `facts`.
local function append(a, kind, facts, data)
  local s, seq, st = a.s, a.s.seq + 1, a.stamp
  if not st or st.epoch ~= s.epoch then st = stamp(a) end
  data = data or encode(facts)
  redis.call('XADD', a.k.ledger, int(seq) .. '-0', 'type', kind, 'time', st.time_text, 'epoch', st.epoch_text, 'data', data)
  local packed = packed_kinds[kind]
  if not packed then
    packed = '\164type' .. cmsgpack.pack(kind) .. '\164data'
    packed_kinds[kind] = packed
  end
  redis.call('PUBLISH', kind == 'agent/status' and 'session.status' or st.channel,
    st.head .. cmsgpack.pack(seq) .. packed .. string.sub(data, 2))
  s.seq, s.time = seq, st.time
  a.changed.seq, a.changed.time, a.seen[kind] = true, true, true
  local fold = FOLD[kind]
  if fold then fold(a, facts, seq, st.time) end
end

-- == activity ==============================================================================================

local function waking(a)
  if a.s.hold ~= '' then return 0 end
  return a.s.followups + a.s.steers
end

local function wake(a)
  if a.s.status == 'idle' and waking(a) > 0 then append(a, 'agent/status', { status = 'running' }) end
end

local function rest(a)
  local s = a.s
  if s.status == 'running' and waking(a) == 0 and s.phase == 'closed' and #claimed(a) == 0 then
    local held = s.hold ~= '' and (s.followups + s.steers) or nil
    append(a, 'agent/status', { status = 'idle', held = held })
    if s.closing ~= '' then append(a, 'session/closed', { cause = 'closed' }) end
  end
  return s.status == 'idle'
end

local function release_hold(a, cause)
  if a.s.hold ~= '' then append(a, 'inbox/released', { cause = cause }) end
  wake(a)
end

-- All queued messages in the order they would enter: next-step, next-turn, then those not yet due.
local function queued_messages(a)
  local found = {}
  for _, lane in ipairs({ a.k.step, a.k.turn, a.k.later }) do
    for _, mid in ipairs(redis.call('ZRANGE', lane, 0, -1)) do found[#found + 1] = mid end
  end
  return found
end

-- Read records before the first write, so that a damaged one makes the act fail whole (rule 1).
local function preload(a, mids)
  for _, mid in ipairs(mids) do message(a, mid) end
end

-- Likewise, what the next claim of the session may touch; all it reads is kept by the act.
local function preload_next(a)
  preload(a, a.s.claimed)
  if a.s.steers + a.s.injects > 0 then preload(a, redis.call('ZRANGE', a.k.step, 0, -1)) end
  if a.s.followups > 0 then preload(a, redis.call('ZRANGE', a.k.turn, 0, a.s.expiring > 0 and -1 or 1)) end
end

-- Cancel everything that is queued.
local function clear(a, cause)
  for _, mid in ipairs(queued_messages(a)) do
    append(a, 'inbox/cancelled', { messageId = mid, why = cause }, encode({ messageId = mid, cause = cause }))
  end
end

local function hold(a, cause)
  if a.s.hold == '' then append(a, 'inbox/held', { cause = cause }) end
end

local function ring(p)
  if redis.call('LLEN', p.bell) < BELL_MAX then redis.call('RPUSH', p.bell, '1') end
end

-- Write the state, and what follows from it: rule 3.
local function finish(a)
  local s, fields = a.s, {}
  claimed(a)
  for name in pairs(a.changed) do
    local value = s[name]
    if PACKED[name] then
      value = (value == '' or next(value) == nil) and '' or cmsgpack.pack(value)
    elseif type(value) == 'number' then
      value = int(value)
    end
    local before = a.raw[PLACE[name]]
    if value ~= before and (before or (value ~= '' and value ~= '0')) then -- what is absent is empty or 0
      fields[#fields + 1] = name
      fields[#fields + 1] = value
    end
  end
  if #fields > 0 then redis.call('HSET', a.k.state, unpack(fields)) end
  if a.seen['agent/status'] then
    if s.status == 'running' then redis.call('ZADD', a.p.active, a.now, a.sid) else redis.call('ZREM', a.p.active, a.sid) end
  end
  if s.owner == '' and (s.phase ~= 'closed' or waking(a) > 0) then
    if redis.call('ZADD', a.p.ready, 'NX', a.now, a.sid) == 1 then ring(a.p) end
  end
  if s.goal ~= '' and s.goal.phase == 'active' and s.status == 'idle' and (a.seen['agent/status'] or a.seen['goal/change']) then
    local notice = { sessionId = a.sid, goalId = s.goal.goalId, revision = s.goal.revision, idleSeq = s.idleSeq }
    redis.call('XADD', a.p.idle, 'MAXLEN', '~', IDLE_NOTICES_MAX, '*', 'data', encode(notice))
  end
end

-- == goals =================================================================================================

local function record_goal(a, operation, goal)
  append(a, 'goal/change', { operation = operation, goal = goal })
  if a.s.goalMessage ~= '' then
    append(a, 'inbox/cancelled', { messageId = a.s.goalMessage, cause = 'stale', why = 'stale' },
      encode({ messageId = a.s.goalMessage, cause = 'stale' }))
  end
end

local function with_phase(goal, phase, reason)
  local copy = {}
  for name, value in pairs(goal) do copy[name] = value end
  copy.phase, copy.revision, copy.reason = phase, goal.revision + 1, reason
  return copy
end

local function pause_goal(a, kind)
  local goal = a.s.goal
  if goal ~= '' and goal.phase == 'active' then record_goal(a, 'pause', with_phase(goal, 'paused', { kind = kind })) end
end

-- == turns =================================================================================================

-- Which fact may stand in which phase, and the phase after it. The twin of turn.GRAMMAR.
local GRAMMAR = {
  ['step/start'] = { boundary = 'open' },
  ['user/message'] = { open = 'open' },
  ['llm/retry'] = { open = 'open' },
  ['usage/recorded'] = { open = 'open', answered = 'answered', boundary = 'boundary' },
  ['assistant/message'] = { open = 'answered' },
  ['tool/call'] = { answered = 'answered' },
  ['tool/result'] = { answered = 'answered' },
  ['step/end'] = { open = 'boundary', answered = 'boundary' },
  ['inbox/rejected'] = { boundary = 'boundary' },
}

-- What becomes of a claimed message that was not admitted. The twin of turn.LEFTOVER; absent: such an end is refused.
local LEFTOVER = { aborted = 'inbox/cancelled', error = 'inbox/rejected', interrupted = 'inbox/dead' }
local ENDS = { completed = true, ['max-tokens'] = true, blocked = true, aborted = true, error = true }
local COULD_COMPLETE = { completed = true, ['max-tokens'] = true }
local FAILURES = { error = true, blocked = true, interrupted = true }

-- What stands for the result of a call that has none, by how far the call was. The twin of turn.NO_RESULT.
local NO_RESULT = {
  started = { code = 'TOOL_OUTCOME_UNKNOWN', message = 'the call was started and its outcome is not known' },
  asked = { code = 'ABORTED_BEFORE_DISPATCH', message = 'the turn was aborted before the call was started' },
}

local function refused(code, sentence) return { 'refused', code, sentence } end

-- Drafts come as (type, subject, data); the subject is a msgpack list of what `check` and FOLD need: turn, step (0 where
-- the data names none), and what stands here by type.
local FACTS = {
  ['user/message'] = function(f, x) f.messageId = x[3] end,
  ['inbox/rejected'] = function(f, x) f.messageId, f.why = x[3], x[4] end,
  ['llm/retry'] = function(f, x) f.delay = x[3] end,
  ['assistant/message'] = function(f, x) f.calls = x[3] end,
  ['tool/call'] = function(f, x) f.callId = x[3] end,
  ['tool/result'] = function(f, x) f.callId = x[3] end,
  ['usage/recorded'] = function(f, x) f.input, f.output, f.cost = x[3], x[4], x[5] end,
}

local function read_drafts(argv, at)
  local drafts = {}
  for i = at, #argv, 3 do
    local kind, subject = argv[i], cmsgpack.unpack(argv[i + 1])
    local facts, complete = { turn = subject[1], step = subject[2] }, FACTS[kind]
    if complete then complete(facts, subject) end
    drafts[#drafts + 1] = { kind = kind, facts = facts, data = argv[i + 2] }
  end
  return drafts
end

-- What each fact must name to stand where it does; `view` is the turn as it will be when the fact comes.
local NAMES = {
  ['step/start'] = function(view)
    view.step = view.step + 1
    return true
  end,
  ['user/message'] = function(view, f, a) -- what the turn claimed, or what a hook added: that was never queued
    local ok = view.claimed[f.messageId] or not message(a, f.messageId)
    view.claimed[f.messageId] = nil
    return ok
  end,
  ['inbox/rejected'] = function(view, f)
    local ok = view.claimed[f.messageId]
    view.claimed[f.messageId] = nil
    return ok
  end,
  ['assistant/message'] = function(view, f)
    view.calls = {}
    for _, id in ipairs(f.calls) do view.calls[id] = 'asked' end
    return true
  end,
  ['tool/call'] = function(view, f)
    local ok = view.calls[f.callId] == 'asked'
    view.calls[f.callId] = 'started'
    return ok
  end,
  ['tool/result'] = function(view, f)
    local ok = view.calls[f.callId] ~= nil
    view.calls[f.callId] = nil
    return ok
  end,
  ['step/end'] = function(view) return next(view.calls) == nil end,
}

-- A fact says in which turn and step it stands, and the fold believes it. A rejection has no step.
local function in_place(view, draft)
  return draft.facts.turn == view.turn and (draft.kind == 'inbox/rejected' or draft.facts.step == view.step)
end

-- The turn as it will be after the drafts, or nil and the refusal. The twin of turn.check.
local function check(a, drafts)
  local view = { phase = a.s.phase, turn = a.s.turn, step = a.s.step, claimed = {}, calls = {} }
  for _, mid in ipairs(a.s.claimed) do view.claimed[mid] = true end
  for id, state in pairs(a.s.calls) do view.calls[id] = state end
  for _, draft in ipairs(drafts) do
    local after = GRAMMAR[draft.kind] and GRAMMAR[draft.kind][view.phase]
    if not after then
      return nil, refused('grammar', draft.kind .. ' may not stand in turn ' .. int(a.s.turn) .. ', which is ' .. view.phase)
    end
    local names = NAMES[draft.kind]
    if (names and not names(view, draft.facts, a)) or not in_place(view, draft) then
      return nil, refused('grammar', draft.kind .. ' in turn ' .. int(a.s.turn) .. ' names what is not open there')
    end
    view.phase = after
  end
  return view
end

local function append_drafts(a, drafts)
  for _, draft in ipairs(drafts) do
    append(a, draft.kind, draft.facts, draft.data)
    if draft.kind == 'inbox/rejected' and serves_goal(a, message(a, draft.facts.messageId)) then pause_goal(a, 'rejected') end
  end
end

local function claim(a, batch, step)
  append(a, 'inbox/claimed', { turn = a.s.turn, step = step, messageIds = batch })
end

-- The one follow-up a new turn claims; a goal message makes way for a person's (semantics G3).
local function followup(a)
  local goal_message = a.s.goalMessage
  local waiting = redis.call('ZRANGE', a.k.turn, 0, 1)
  if goal_message == '' or #waiting < 2 or message(a, goal_message)[2] ~= 't' then return waiting[1] end
  append(a, 'inbox/cancelled', { messageId = goal_message, why = 'preempted' },
    encode({ messageId = goal_message, cause = 'preempted' }))
  return waiting[1] == goal_message and waiting[2] or waiting[1]
end

-- A message whose time is over. The twin of inbox._expired.
local function expired(a, mid)
  append(a, 'inbox/expired', { messageId = mid })
  if message(a, mid)[7] ~= '' then pause_goal(a, 'expired') end
end

-- What would be claimed now from a lane and is over expires instead. The twin of inbox.expire.
local function expire(a, lane)
  if a.s.expiring == 0 then return end
  for _, mid in ipairs(redis.call('ZRANGE', lane, 0, -1)) do
    local record = message(a, mid)
    if record[14] > 0 and record[14] <= math.max(a.now, a.s.time) then
      expired(a, mid)
    elseif lane == a.k.turn and record[7] == '' then
      return -- one follow-up is claimed
    end
  end
end

-- Open a turn and claim its batch; false, and no trace, when there is nothing to claim (semantics T2).
local function take(a)
  if a.s.phase ~= 'closed' or waking(a) == 0 then return false end
  expire(a, a.k.step)
  expire(a, a.k.turn)
  if waking(a) == 0 then return false end
  local batch = {}
  if a.s.steers + a.s.injects > 0 then batch = redis.call('ZRANGE', a.k.step, 0, -1) end
  if a.s.followups > 0 then batch[#batch + 1] = followup(a) end
  append(a, 'turn/start', { turn = a.s.turn + 1 })
  claim(a, batch)
  return true
end

local function take_step(a)
  if a.s.hold ~= '' or a.s.cancel ~= '' then return end
  expire(a, a.k.step)
  if a.s.steers + a.s.injects == 0 then return end
  claim(a, redis.call('ZRANGE', a.k.step, 0, -1), a.s.step + 1)
end

-- Settle what was claimed and not admitted, end the turn, pause the goal, hold. The twin of turn.close.
local function close(a, ending)
  local s = a.s
  local turn = s.turn
  if ending.kind == 'aborted' and s.cancel == '' then
    append(a, 'cancel/requested', { cause = ending.why, queue = 'keep', turn = turn })
  end
  local kind, reason, why = ending.kind, ending.reason, ending.why
  if s.cancel ~= '' then
    kind, reason, why = 'aborted', cmsgpack.pack({ kind = 'aborted', cause = s.cancel }), s.cancel
  end
  for _, mid in ipairs(claimed(a)) do
    if LEFTOVER[kind] == 'inbox/cancelled' then
      append(a, 'inbox/cancelled', { messageId = mid, why = 'cancel' }, encode({ messageId = mid, cause = 'cancel' }))
    elseif LEFTOVER[kind] == 'inbox/dead' then
      append(a, 'inbox/dead', { messageId = mid, why = kind }, encode({ messageId = mid, reason = kind, attempts = s.attempt }))
    else
      append(a, 'inbox/rejected', { messageId = mid, turn = turn, why = why }, encode({ messageId = mid, turn = turn, reason = why }))
    end
  end
  local usage = ending.usage ~= '' and ('\165usage' .. ending.usage) or ''
  local data = VERSION .. (usage ~= '' and '\131' or '\130') .. '\164turn' .. cmsgpack.pack(turn) .. '\166reason' .. reason .. usage
  append(a, 'turn/end', {}, data)
  if kind ~= 'completed' then pause_goal(a, kind) end
  if FAILURES[kind] and s.onFailure == 'hold' then hold(a, 'failure') end
end

-- The crash that a new owner finds is the open turn's last one (semantics R5).
local function spent(a, crashes_max)
  local s = a.s
  return s.owner == '' and s.phase ~= 'closed' and s.back == 'crash' and s.attempt >= crashes_max
end

-- Close a turn that crashed too often, keep a dead letter unless a cancel wins, and rest. The twin of turn.give_up.
local function give_up(a)
  local s = a.s
  local letter = { sessionId = a.sid, turn = s.turn, reason = 'interrupted', attempts = s.attempt, messages = {}, time = a.now }
  for _, seq in ipairs(s.claims) do
    for _, mid in ipairs(decode(event_data(a, seq)).messageIds) do letter.messages[#letter.messages + 1] = mid end
  end
  local aborted, calls = s.cancel ~= '', {}
  for id in pairs(s.calls) do calls[#calls + 1] = id end
  table.sort(calls)
  for _, id in ipairs(calls) do
    append(a, 'tool/result', { callId = id },
      encode({ turn = s.turn, step = s.step, callId = id, content = '', error = NO_RESULT[s.calls[id]] }))
  end
  if s.phase ~= 'boundary' then append(a, 'step/end', { turn = s.turn, step = s.step }) end
  close(a, { kind = 'interrupted', why = 'interrupted', reason = cmsgpack.pack({ kind = 'interrupted' }), usage = '' })
  rest(a)
  if not aborted then
    redis.call('XADD', a.p.dead, '*', 'data', encode(letter))
    add(a, 'letters', 1)
  end
  finish(a)
end

-- == leases ================================================================================================

local function owned(a, argv_epoch, owner)
  return a.s.owner ~= '' and a.s.owner == owner and a.s.epoch == tonumber(argv_epoch)
end

local function fenced(a, argv_epoch, owner)
  if owned(a, argv_epoch, owner) then return false end
  redis.call('HINCRBY', a.p.counts, 'fenced', 1)
  return true
end

-- A lease ends `lease_ms` from now.
local function prolong(a, lease_ms)
  set(a, 'lease', a.now + lease_ms)
  set(a, 'leaseMs', lease_ms)
  redis.call('ZADD', a.p.leases, a.s.lease, a.sid)
end

local function lease(a, owner, lease_ms)
  set(a, 'epoch', a.s.epoch + 1)
  set(a, 'owner', owner)
  set(a, 'call', 0)
  set(a, 'recovered', '')
  prolong(a, lease_ms)
end

local function release(a, back)
  set(a, 'owner', '')
  set(a, 'lease', 0)
  set(a, 'back', back)
  redis.call('ZREM', a.p.leases, a.sid)
end

-- The session as its owner sees it; each claimed message with its `inbox/queued` data, and its last `inbox/replaced` or ''.
local function grant(a, reply)
  local s = a.s
  local calls = next(s.calls) ~= nil and cmsgpack.pack(s.calls) or ''
  for _, value in ipairs({ a.sid, int(s.epoch), s.owner, s.agent, int(s.seq), int(s.turn), int(s.step), s.phase, int(s.attempt),
    s.cancel, s.recovered, calls, int(s.born) }) do
    reply[#reply + 1] = value
  end
  for _, mid in ipairs(claimed(a)) do
    local record = message(a, mid)
    reply[#reply + 1] = mid
    reply[#reply + 1] = event_data(a, record[4])
    reply[#reply + 1] = record[5] ~= record[4] and event_data(a, record[5]) or ''
  end
  return reply
end

-- For an act that writes before it leases: the session that lease_next will find first.
local function touch_next(prefix, p)
  local sid = redis.call('ZRANGE', p.ready, 0, 0)[1]
  if sid then touched(prefix, sid) end
end

-- A ready session with everything that leasing it will read, or nil when that cannot be read.
local function open_next(prefix, sid, p)
  local a = open_sound(prefix, sid, p)
  if a and a.s.owner == '' and sound(p, preload_next, a) then return a end
end

-- Lease the longest-ready session that has something to do, and open or recover its turn; nil when there is none.
local function lease_next(prefix, p, owner, lease_ms, crashes_max)
  for _ = 1, STALE_MAX do
    local sid = redis.call('ZRANGE', p.ready, 0, 0)[1]
    if not sid then return nil end
    local a = open_next(prefix, sid, p)
    if a and spent(a, crashes_max) then
      give_up(a)
      a = open_found(prefix, sid, p)
    end
    if a and a.s.owner == '' and a.s.phase == 'closed' and a.s.expiring > 0 and waking(a) > 0 then
      expire(a, a.k.step)
      expire(a, a.k.turn)
      rest(a)
      finish(a)
      local now = a.now -- of the same act: nothing more is over when the turn is opened
      a = open_found(prefix, sid, p)
      a.now = now
    end
    redis.call('ZREM', p.ready, sid)
    if a and a.s.owner == '' and (a.s.phase ~= 'closed' or waking(a) > 0) then
      lease(a, owner, lease_ms)
      if a.s.phase ~= 'closed' then
        local attempt = a.s.attempt + (a.s.back == 'crash' and 1 or 0)
        append(a, 'turn/recovered', { turn = a.s.turn, attempt = attempt, reason = a.s.back })
        set(a, 'recovered', a.s.back)
      else
        take(a)
      end
      set(a, 'back', 'crash')
      finish(a)
      if redis.call('ZCARD', p.ready) > 0 then ring(p) end
      return a
    end
  end
  ring(p) -- there may be more behind the stale ones
  return nil
end

-- A slot remembers its last acquire, settle or handback, so that a lost answer can be given again: call, outcome,
-- and the session it was given with its epoch ('' and 0 for none).
local function remember(p, call, outcome, given)
  local sid, epoch = given and given.sid or '', given and given.s.epoch or 0
  redis.call('SET', p.slot, cmsgpack.pack({ call, outcome, sid, epoch }), 'PX', SLOT_MS)
end

local function remembered(p, call)
  local raw = redis.call('GET', p.slot)
  local slot = raw and cmsgpack.unpack(raw)
  if slot and slot[1] == call then return slot end
end

-- The session that a slot was given, unless its lease was lost since: then it is nobody's to give any more.
local function given_again(slot, prefix, p, owner, reply)
  if slot[3] == '' then return reply end
  local a = open_found(prefix, slot[3], p)
  return a.s.owner == owner and a.s.epoch == slot[4] and grant(a, reply) or reply
end

-- == functions: doors ======================================================================================

local function begin_session(a, created, agent, on_failure, fingerprint)
  append(a, 'session/created', { agent = agent, onFailure = on_failure, fingerprint = fingerprint }, created)
end

-- Refusals: work for a session that is closed or about to be, and what does not fit beside what is queued.
local function shut(a)
  if a.s.closed ~= '' or a.s.closing ~= '' then return refused('closed', 'session ' .. a.sid .. ' is closed') end
end

local function full(a, count, size, messages_max, bytes_max)
  local s = a.s
  local depth = s.followups + s.steers + s.injects + s.delayed
  if depth + count > tonumber(messages_max) then
    return refused('queue-full', 'session ' .. a.sid .. ' has ' .. int(depth) .. ' queued messages; the limit is ' .. messages_max)
  end
  if size > 0 and s.waitingBytes + size > tonumber(bytes_max) then
    return refused('queue-full',
      'session ' .. a.sid .. ' has ' .. int(s.waitingBytes) .. ' bytes of queued messages; the limit is ' .. bytes_max)
  end
end

-- Refusals by the message's own times and conditions, as submit gives them.
local function unfit(a, argv)
  local s, expires, turn = a.s, tonumber(argv[16]), tonumber(argv[19])
  if expires and expires <= math.max(a.now, s.time) then
    return refused('expired', 'message ' .. argv[2] .. ' expired at ' .. argv[16] .. ', which is over')
  end
  if argv[17] == '1' and (s.status == 'running' or s.followups + s.steers > 0) then
    return refused('busy', 'session ' .. a.sid .. ' is busy')
  end
  if argv[18] == '1' and s.status == 'idle' then return refused('idle', 'session ' .. a.sid .. ' is idle') end
  if turn and (s.phase == 'closed' or s.turn ~= turn) then
    return refused('turn-mismatch', 'turn ' .. argv[19] .. ' of session ' .. a.sid .. ' is not open')
  end
end

-- Queue a message and wake the agent; `release` is the cause by which it ends a hold, false if it ends none. The twin of
-- inbox._queue. Returns its seq.
local function queue(a, facts, data, release)
  facts.size = #data
  append(a, 'inbox/queued', facts, data)
  local cursor = a.s.seq
  if release and facts.wake == 1 and message(a, facts.messageId)[12] == 1 then release_hold(a, release) end
  wake(a)
  return cursor
end

-- create: make a session.
-- ARGV sid, created data, agent, onFailure, fingerprint -> ok, cursor, fresh
local function create(keys, argv)
  local a = open(keys, argv)
  if a.s.seq == 0 then
    begin_session(a, argv[2], argv[3], argv[4], argv[5])
    finish(a)
    return { 'ok', a.s.seq, 1 }
  end
  if a.s.created ~= argv[5] then return refused('session-exists', 'session ' .. a.sid .. ' exists with other settings') end
  return { 'ok', a.s.seq, 0 }
end

-- submit: queue a message once, and wake the agent if the message wakes it.
-- ARGV sid, messageId, lane t|s, wake 0|1, goalId ('' = no round), from a door 0|1, fingerprint, depth max, data,
--      created data ('' = do not create), agent, onFailure, created fingerprint, bytes max, notBefore (0: none),
--      expiresAt ('': none), refuse if busy 0|1, refuse if idle 0|1, expected turn ('': any) -> ok, cursor, duplicate
local function submit(keys, argv)
  local a = open(keys, argv)
  local mid = argv[2]
  local known = message(a, mid)
  if known then
    if known[11] ~= argv[7] then
      return refused('conflict', 'message ' .. mid .. ' was already submitted with another body')
    end
    redis.call('HSET', a.k.state, 'seq', int(a.s.seq)) -- a write to wait for: the durability level is checked again (M2)
    return { 'ok', known[4], 1 }
  end
  if a.s.seq == 0 and argv[10] == '' then return refused('not-found', 'there is no session ' .. a.sid) end
  local no = shut(a) or unfit(a, argv) or full(a, 1, #argv[9], argv[8], argv[14])
  if no then return no end
  if a.s.seq == 0 then begin_session(a, argv[10], argv[11], argv[12], argv[13]) end
  local cursor = queue(a, { messageId = mid, lane = argv[3], wake = tonumber(argv[4]), goal = argv[5], fingerprint = argv[7],
    notBefore = tonumber(argv[15]), expiresAt = tonumber(argv[16]) or 0 }, argv[9], argv[6] == '1' and 'submit')
  finish(a)
  return { 'ok', cursor, 0 }
end

-- Tell the session's owner that a cancel of its turn is recorded. A hint.
local function tell_owner(a)
  local s = a.s
  local worker = string.match(s.owner, '^(.*)/[^/]*$')
  if worker then
    redis.call('PUBLISH', 'mailslot:control:' .. worker,
      encode({ sessionId = a.sid, epoch = s.epoch, turn = s.turn, cause = s.cancel }))
  end
end

-- Something waits that a hold would keep, now or when it is due; or a goal, whose next round it would.
local function waits(a)
  if a.s.followups + a.s.steers > 0 or (a.s.goal ~= '' and a.s.goal.phase == 'active') then return true end
  for _, mid in ipairs(redis.call('ZRANGE', a.k.later, 0, -1)) do
    if message(a, mid)[3] == 1 then return true end
  end
  return false
end

-- cancel: record a cancel of the open turn and tell its owner; keep, hold or clear the queue.
-- ARGV sid, cause, turn ('' = the open one), queue keep|hold|clear -> ok, outcome, turn, queued messageIds...
local function cancel(keys, argv)
  local a = open(keys, argv)
  local s, cause, to_queue = a.s, argv[2], argv[4]
  if s.seq == 0 then return refused('not-found', 'there is no session ' .. a.sid) end
  local opened = s.phase ~= 'closed'
  if argv[3] ~= '' and not (opened and s.turn == tonumber(argv[3])) then
    return refused('not-open', 'cannot cancel turn ' .. argv[3] .. ' of session ' .. a.sid .. ': it is not open')
  end
  local pauses = cause == 'user' and s.goal ~= '' and s.goal.phase == 'active'
  local reply = { 'ok', 'nothing_to_cancel', 0 }
  local queued = queued_messages(a)
  local changes = (to_queue == 'clear' and #queued > 0) or (to_queue == 'hold' and s.hold == '' and (opened or waits(a)))
  if opened or pauses or changes then
    reply = { 'ok', 'requested', opened and s.turn or 0 }
    if to_queue == 'clear' then preload(a, queued) end
    if s.cancel == '' or changes or pauses then
      append(a, 'cancel/requested', { cause = cause, queue = to_queue, turn = opened and s.turn or nil })
    end
    if to_queue == 'clear' then clear(a, 'cancel') end
    if to_queue == 'hold' then hold(a, 'cancel') end
    if pauses then pause_goal(a, 'cancelled') end
    rest(a)
    finish(a)
    if opened then tell_owner(a) end
  end
  for _, mid in ipairs(queued_messages(a)) do reply[#reply + 1] = mid end
  return reply
end

-- A message's record as a reply: state, lane, wake, due, held, queuedSeq, turn, step, why.
local function told_record(a, record)
  local held = record[1] == 'q' and record[3] == 1 and record[12] == 1 and a.s.hold ~= ''
  return { 'ok', record[1], record[2], record[3], record[12], held and 1 or 0, record[4], record[8], record[9], record[10] }
end

-- The record of a message that can still be changed, or nil and why not. The twin of inbox.queued_message.
local function changeable(a, mid)
  if a.s.seq == 0 then return nil, refused('not-found', 'there is no session ' .. a.sid) end
  local record = message(a, mid)
  if not record then return nil, refused('not-found', 'session ' .. a.sid .. ' has no message ' .. mid) end
  if record[1] == 'c' then return nil, refused('already-claimed', 'message ' .. mid .. ' is already claimed') end
  if record[1] ~= 'q' then return nil, refused('already-settled', 'message ' .. mid .. ' is already settled') end
  return record
end

-- replace: give a queued message other content, in its place.
-- ARGV sid, messageId, data, bytes max -> ok, record
local function replace(keys, argv)
  local a = open(keys, argv)
  local record, no = changeable(a, argv[2])
  no = no or full(a, 0, #argv[3] - record[15], '1e15', argv[4])
  if no then return no end
  append(a, 'inbox/replaced', { messageId = argv[2], size = #argv[3] }, argv[3])
  finish(a)
  return told_record(a, message(a, argv[2]))
end

-- withdraw: take a queued message back.
-- ARGV sid, messageId -> ok, record
local function withdraw(keys, argv)
  local a = open(keys, argv)
  local record, no = changeable(a, argv[2])
  if no then return no end
  append(a, 'inbox/cancelled', { messageId = argv[2], why = 'withdrawn' }, encode({ messageId = argv[2], cause = 'withdrawn' }))
  if record[7] ~= '' then pause_goal(a, 'withdrawn') end
  rest(a)
  finish(a)
  return told_record(a, message(a, argv[2]))
end

-- move: steer with a queued message; it is due then, and a hold ends.
-- ARGV sid, messageId -> ok, record
local function move(keys, argv)
  local a = open(keys, argv)
  local _, no = changeable(a, argv[2])
  if no then return no end
  append(a, 'inbox/moved', { messageId = argv[2], lane = 's' }, encode({ messageId = argv[2], lane = 'next-step' }))
  release_hold(a, 'move')
  finish(a)
  return told_record(a, message(a, argv[2]))
end

-- release: end a hold.
-- ARGV sid -> ok, cursor
local function release_session(keys, argv)
  local a = open(keys, argv)
  if a.s.seq == 0 then return refused('not-found', 'there is no session ' .. a.sid) end
  local no = shut(a) or a.s.hold == '' and refused('not-held', 'session ' .. a.sid .. ' is not on hold')
  if no then return no end
  release_hold(a, 'release')
  finish(a)
  return { 'ok', a.s.seq }
end

-- close: stop the open turn, clear the queue, and close the session now or at its next idle. The twin of
-- turn.close_session. With erase, the sweeper sees to it that nothing of it is kept once it is closed.
-- ARGV sid, erase 0|1 -> ok, closed 0|1, cursor
local function close_session(keys, argv)
  local a = open(keys, argv)
  local s = a.s
  if s.seq == 0 then return refused('not-found', 'there is no session ' .. a.sid) end
  if s.closed == '' and s.closing == '' then
    local opened = s.phase ~= 'closed'
    preload(a, queued_messages(a))
    if opened then append(a, 'cancel/requested', { cause = 'user', queue = 'clear', turn = s.turn, closing = true }) end
    clear(a, 'closed')
    pause_goal(a, 'closed')
    if rest(a) then append(a, 'session/closed', { cause = 'closed' }) end
    finish(a)
    if opened then tell_owner(a) end
  end
  if argv[2] == '1' then redis.call('ZADD', a.p.erase, 'NX', a.now, a.sid) end
  return { 'ok', s.closed ~= '' and 1 or 0, s.seq }
end

-- erase: drop what is kept of a closed session, some of it a call.
-- ARGV sid -> ok, done 0|1, message records dropped, events dropped
local function erase(keys, argv)
  local a = open(keys, argv)
  local k, p = a.k, a.p
  if a.s.seq > 0 and a.s.closed == '' then return { 'ok', 0, 0, 0 } end
  local found = redis.call('HRANDFIELD', k.messages, ERASE_MAX)
  for _, mid in ipairs(found) do
    redis.call('ZREM', p.forget, a.sid .. '\0' .. mid)
    redis.call('HDEL', k.messages, mid)
  end
  if redis.call('EXISTS', k.messages) == 1 then return { 'ok', 0, #found, 0 } end
  local events = redis.call('XLEN', k.ledger)
  redis.call('UNLINK', k.state, k.ledger, k.turn, k.step, k.later)
  for _, index in ipairs({ p.ready, p.active, p.leases, p.sessions, p.erase }) do redis.call('ZREM', index, a.sid) end
  redis.call('SREM', p.goals, a.sid)
  return { 'ok', 1, #found, events }
end

-- redrive: queue dead messages again, each with its id.
-- ARGV sid, depth max, bytes max, (messageId, lane t|s, wake 0|1, from a door 0|1, fingerprint, data)* -> ok, cursors...
local function redrive(keys, argv)
  local a = open(keys, argv)
  local count, size = 0, 0
  for i = 4, #argv, 6 do count, size = count + 1, size + #argv[i + 5] end
  local no = shut(a)
  for i = 4, #argv, 6 do
    local record = message(a, argv[i])
    no = no or (not record or record[1] ~= 'd') and
      refused('not-dead', 'message ' .. argv[i] .. ' of session ' .. a.sid .. ' is not dead') or nil
  end
  no = no or full(a, count, size, argv[2], argv[3])
  if no then return no end
  local reply = { 'ok' }
  for i = 4, #argv, 6 do
    reply[#reply + 1] = queue(a, { messageId = argv[i], lane = argv[i + 1], wake = tonumber(argv[i + 2]), goal = '',
      fingerprint = argv[i + 4], notBefore = 0, expiresAt = 0 }, argv[i + 5], argv[i + 3] == '1' and 'redrive')
  end
  finish(a)
  return reply
end

-- queue: a page of the messages that are not settled: 0 claimed, 1 next-step, 2 next-turn, 3 not yet due, each by place.
-- ARGV sid, group, place (only what comes after), limit, bytes max
--   -> ok, more 0|1, (group, place, messageId, record, inbox/queued data, last inbox/replaced data or '')*
local function read_queue(keys, argv)
  local a = open(keys, argv)
  if a.s.seq == 0 then return refused('not-found', 'there is no session ' .. a.sid) end
  local group, place, limit, bytes = tonumber(argv[2]), tonumber(argv[3]), tonumber(argv[4]), 0
  local found = {}
  if group <= 0 then
    for _, mid in ipairs(a.s.claimed) do
      if group < 0 or message(a, mid)[6] > place then found[#found + 1] = { 0, message(a, mid)[6], mid } end
    end
    table.sort(found, function(x, y) return x[2] < y[2] end)
  end
  for number, lane in ipairs({ a.k.step, a.k.turn, a.k.later }) do
    local from = group < number and '-inf' or group == number and '(' .. int(place) or nil
    local mids = from and redis.call('ZRANGE', lane, from, '+inf', 'BYSCORE', 'LIMIT', 0, limit + 1) or {}
    for _, mid in ipairs(mids) do found[#found + 1] = { number, message(a, mid)[6], mid } end
  end
  local reply = { 'ok', 0 }
  for i, entry in ipairs(found) do
    if i > limit or bytes >= tonumber(argv[5]) then
      reply[2] = 1
      break
    end
    local record = message(a, entry[3])
    bytes = bytes + record[15]
    for _, value in ipairs({ entry[1], entry[2], entry[3] }) do reply[#reply + 1] = value end
    reply[#reply + 1] = told_record(a, record)
    reply[#reply + 1] = event_data(a, record[4])
    reply[#reply + 1] = record[5] ~= record[4] and event_data(a, record[5]) or ''
  end
  return reply
end

-- goal_change: put a goal record in place of the one the caller saw. Which record follows which is goal.PHASES' business.
-- A goal is made by goal_create, which is the same act as intake: it brings work, and maybe a session.
-- ARGV sid, operation, expected goalId ('' = none or a complete one), expected revision, goal (msgpack),
--      created data ('' = do not create), agent, onFailure, created fingerprint -> ok, goal (msgpack)
local function goal_change(keys, argv)
  local a = open(keys, argv)
  local goal, operation = a.s.goal, argv[2]
  if a.s.seq == 0 and argv[6] == '' then return refused('not-found', 'there is no session ' .. a.sid) end
  local no = shut(a)
  if no then return no end
  if argv[3] == '' then
    if goal ~= '' and goal.phase ~= 'complete' then
      return refused('goal-exists', 'session ' .. a.sid .. ' has goal ' .. goal.goalId .. ', which is ' .. goal.phase)
    end
  elseif goal == '' then
    return refused('not-found', 'session ' .. a.sid .. ' has no goal')
  elseif goal.goalId ~= argv[3] or goal.revision ~= tonumber(argv[4]) then
    return refused('revision', 'goal ' .. goal.goalId .. ' is at revision ' .. int(goal.revision))
  end
  local changed = cmsgpack.unpack(argv[5])
  if goal ~= '' and goal.goalId == changed.goalId then
    changed.rounds, changed.spent = goal.rounds, goal.spent -- a round may have been admitted since the caller looked
  end
  if operation == 'create' then changed.revision = a.s.goalRevision + 1 end -- which the caller cannot see
  if a.s.seq == 0 then begin_session(a, argv[6], argv[7], argv[8], argv[9]) end
  record_goal(a, operation, changed)
  if operation == 'create' or operation == 'resume' then release_hold(a, 'goal') end
  rest(a)
  finish(a)
  return { 'ok', cmsgpack.pack(changed) }
end

-- goal_advance: queue the next round on an idle agent, or block the goal whose rounds are spent.
-- ARGV sid, goalId, revision, round, idle seq, messageId, fingerprint, data -> ok, advanced 0|1
local function goal_advance(keys, argv)
  local a = open(keys, argv)
  local s, goal = a.s, a.s.goal
  local may = goal ~= '' and s.closed == '' and s.closing == '' and s.status == 'idle' and s.hold == '' and waking(a) == 0 and goal.phase == 'active'
    and goal.goalId == argv[2] and goal.revision == tonumber(argv[3]) and goal.rounds + 1 == tonumber(argv[4])
    and s.idleSeq == tonumber(argv[5]) and not message(a, argv[6])
  if not may then return { 'ok', 0 } end
  if goal.budgets.rounds and goal.rounds >= goal.budgets.rounds then
    local reason = { code = 'budget-rounds', message = 'all ' .. int(goal.rounds) .. ' rounds are spent' }
    record_goal(a, 'block', with_phase(goal, 'blocked', reason))
  else
    queue(a, { messageId = argv[6], lane = 't', wake = 1, goal = goal.goalId, fingerprint = argv[7], notBefore = 0,
      expiresAt = 0 }, argv[8], false)
  end
  finish(a)
  return { 'ok', 1 }
end

-- == functions: workers ====================================================================================

-- acquire: lease the partition's longest-ready session.
-- ARGV prefix, owner, call, lease ms, crashes max -> ok, [grant]
local function acquire(keys, argv)
  local p = partition_keys(keys, 1)
  local call = tonumber(argv[3])
  local slot = remembered(p, call)
  if slot and slot[3] ~= '' then return given_again(slot, argv[1], p, argv[2], { 'ok' }) end
  local a = lease_next(argv[1], p, argv[2], tonumber(argv[4]), tonumber(argv[5]))
  if not a then return { 'ok' } end
  remember(p, call, '', a)
  return grant(a, { 'ok' })
end

-- commit: append a worker's facts; with take, claim what waits for the next step.
-- ARGV sid, epoch, owner, call, take 0|1, (type, subject, data)* -> ok, grant
local function commit(keys, argv)
  local a = open(keys, argv)
  if fenced(a, argv[2], argv[3]) then return { 'fenced' } end
  local call = tonumber(argv[4])
  if call == a.s.call then return grant(a, { 'ok' }) end
  if call < a.s.call then return refused('stale-call', 'call ' .. argv[4] .. ' of session ' .. a.sid .. ' is an old one') end
  local drafts = read_drafts(argv, 6)
  local view, no = check(a, drafts)
  if not view then return no end
  if argv[5] == '1' and view.phase ~= 'boundary' then
    return refused('grammar', 'turn ' .. int(a.s.turn) .. ' is not at a step boundary')
  end
  if argv[5] == '1' then preload_next(a) end
  append_drafts(a, drafts)
  if argv[5] == '1' then take_step(a) end
  set(a, 'call', call)
  finish(a)
  return grant(a, { 'ok' })
end

-- The session stays with its owner after a settle.
local function kept_on(a, outcome)
  set(a, 'outcome', outcome)
  finish(a)
  return grant(a, { 'ok', outcome })
end

-- settle: append the last facts; end the turn, or go on with it because a steer waits; then take the next batch or rest.
-- ARGV sid, epoch, owner, call, prefix, lease ms, then take|yield, hand out 0|1, kind, cause or code, reason, usage,
--      crashes max, (type, subject, data)* -> ok, outcome, [grant]
local function settle(keys, argv)
  local a = open(keys, argv)
  local call = tonumber(argv[4])
  if not owned(a, argv[2], argv[3]) then -- or it was given back by this very call
    local slot = remembered(a.p, call)
    if slot and slot[2] ~= '' then return given_again(slot, argv[5], a.p, argv[3], { 'ok', slot[2] }) end
  end
  if fenced(a, argv[2], argv[3]) then return { 'fenced' } end
  if call == a.s.call then return grant(a, { 'ok', a.s.outcome }) end
  if call < a.s.call then return refused('stale-call', 'call ' .. argv[4] .. ' of session ' .. a.sid .. ' is an old one') end
  local ending = { kind = argv[9], why = argv[10], reason = argv[11], usage = argv[12] }
  local drafts = read_drafts(argv, 14)
  local view, no = check(a, drafts)
  if not view then return no end
  if view.phase ~= 'boundary' then return refused('grammar', 'turn ' .. int(a.s.turn) .. ' cannot end inside a step') end
  if not ENDS[ending.kind] then return refused('grammar', 'a turn cannot end as ' .. ending.kind) end
  if a.s.cancel == '' and not LEFTOVER[ending.kind] and next(view.claimed) ~= nil then
    return refused('grammar', 'turn ' .. int(a.s.turn) .. ' cannot end as ' .. ending.kind .. ': it has messages it did not admit')
  end
  preload_next(a)
  local hand_out = argv[8] == '1'
  if hand_out then touch_next(argv[5], a.p) end
  append_drafts(a, drafts)
  set(a, 'call', call)
  if a.s.cancel == '' and COULD_COMPLETE[ending.kind] and a.s.hold == '' then
    expire(a, a.k.step)
    if a.s.steers > 0 then
      take_step(a)
      return kept_on(a, 'continue')
    end
  end
  close(a, ending)
  if argv[7] == 'take' and take(a) then return kept_on(a, 'turn') end
  local outcome = rest(a) and 'idle' or 'released'
  release(a, 'resume')
  finish(a)
  local following = hand_out and lease_next(argv[5], a.p, argv[3], tonumber(argv[6]), tonumber(argv[13])) or nil
  remember(a.p, call, outcome, following)
  return following and grant(following, { 'ok', outcome }) or { 'ok', outcome }
end

-- renew: keep a lease.
-- ARGV sid, epoch, owner, lease ms -> ok, alive 0|1, cancel, turn
local function renew(keys, argv)
  local a = open(keys, argv)
  if a.s.owner == '' or a.s.owner ~= argv[3] or a.s.epoch ~= tonumber(argv[2]) then return { 'ok', 0, '', 0 } end
  prolong(a, tonumber(argv[4]))
  finish(a)
  return { 'ok', 1, a.s.cancel, a.s.turn }
end

-- handback: give a lease back; the open turn is not counted as crashed.
-- ARGV sid, epoch, owner, call -> ok
local function handback(keys, argv)
  local a = open(keys, argv)
  local call = tonumber(argv[4])
  local slot = remembered(a.p, call)
  if slot and slot[2] == '' and slot[3] == '' then return { 'ok' } end
  if fenced(a, argv[2], argv[3]) then return { 'fenced' } end
  release(a, 'handback')
  finish(a)
  remember(a.p, call, '', nil)
  return { 'ok' }
end

-- A clock that went back leaves leases that end too late; a lease never outlives its own length (R1). All leases of a
-- deployment are about as long, so behind the latest one that is right no wrong one ends later than a lease is long.
local function cut_leases(prefix, p, now)
  for _, sid in ipairs(redis.call('ZREVRANGE', p.leases, 0, SWEEP_MAX - 1)) do
    local a = open_sound(prefix, sid, p)
    if a then
      if a.s.lease <= now + a.s.leaseMs then return end
      prolong(a, a.s.leaseMs)
      finish(a)
    end
  end
end

local function lapse(prefix, p, now)
  local late = redis.call('ZRANGEBYSCORE', p.leases, '-inf', int(now), 'LIMIT', 0, SWEEP_MAX)
  for _, sid in ipairs(late) do
    local a = open_sound(prefix, sid, p)
    if a then
      release(a, 'crash')
      finish(a)
    else
      redis.call('ZREM', p.leases, sid)
    end
  end
  return #late
end

local function lease_holds(prefix, sid, now)
  local found = redis.pcall('HMGET', prefix .. sid .. ':state', 'owner', 'lease')
  return not found.err and found[1] and found[1] ~= '' and (tonumber(found[2]) or 0) > now
end

-- Each running session is owned by a live lease or in the ready queue (R1). Two fields are read of those that are.
local function repair(prefix, p, now, active)
  local repaired = 0
  for _, sid in ipairs(active) do
    local owned = lease_holds(prefix, sid, now)
    local a = not owned and not redis.call('ZSCORE', p.ready, sid) and open_sound(prefix, sid, p)
    if a then
      if a.s.owner ~= '' then release(a, 'crash') end
      finish(a)
      repaired = repaired + 1
    end
  end
  return repaired
end

local function forget(prefix, p, settled_until)
  local old = redis.call('ZRANGEBYSCORE', p.forget, '-inf', int(settled_until), 'LIMIT', 0, SWEEP_MAX)
  for _, entry in ipairs(old) do
    local sid, mid = string.match(entry, '^(.-)%z(.*)$')
    redis.call('HDEL', prefix .. sid .. ':messages', mid)
    redis.call('ZREM', p.forget, entry)
  end
  return #old
end

-- Messages that became due, and those that expired, in the order of their times; each session is one act, and its records
-- are read before it appends. The twin of inbox.sweep.
local function ripen(prefix, p, now)
  local rung = redis.call('ZRANGEBYSCORE', p.due, '-inf', int(now), 'LIMIT', 0, SWEEP_MAX)
  local mids, order, due, over = {}, {}, 0, 0
  for _, entry in ipairs(rung) do
    local sid, mid = string.match(entry, '^%d+%z(.-)%z(.*)$')
    if not mids[sid] then
      mids[sid] = {}
      order[#order + 1] = sid
    end
    mids[sid][#mids[sid] + 1] = { mid, entry }
  end
  for _, sid in ipairs(order) do
    local a = open_sound(prefix, sid, p)
    for _, found in ipairs(mids[sid]) do
      if a and not sound(p, message, a, found[1]) then a = nil end
    end
    for _, found in ipairs(mids[sid]) do
      local mid, record = found[1], a and message(a, found[1])
      if not record or record[1] ~= 'q' then
        redis.call('ZREM', p.due, found[2])
      elseif record[14] > 0 and record[14] <= now then
        expired(a, mid)
        over = over + 1
      else
        append(a, 'inbox/due', { messageId = mid })
        wake(a)
        due = due + 1
      end
    end
    if a then
      rest(a)
      finish(a)
    end
  end
  return due, over, #rung == SWEEP_MAX
end

-- A message of the letter can still be redriven. Reading stops at the first one.
local function redrivable(prefix, letter)
  if redis.call('HGET', prefix .. letter.sessionId .. ':state', 'closed') then return false end
  for _, mid in ipairs(letter.messages) do
    local raw = redis.call('HGET', prefix .. letter.sessionId .. ':messages', mid)
    if raw and cmsgpack.unpack(raw)[1] == 'd' then return true end
  end
  return false
end

-- Old dead letters of which nothing can be redriven, some in each call, from where the last call ended. Others are kept
-- without limit: a dead message must not be lost because nobody looked.
local function forget_letters(prefix, p, kept_until)
  local from = redis.call('HGET', p.counts, 'letters')
  local entries = redis.call('XRANGE', p.dead, from and '(' .. from or '-', int(kept_until), 'COUNT', LETTERS_MAX)
  for _, entry in ipairs(entries) do
    local readable, letter = sound(p, decode, entry[2][2])
    local alive = true
    if readable then readable, alive = sound(p, redrivable, prefix, letter) end
    if readable and not alive then redis.call('XDEL', p.dead, entry[1]) end
    from = entry[1]
  end
  if #entries == LETTERS_MAX then
    redis.call('HSET', p.counts, 'letters', from)
  elseif from then
    redis.call('HDEL', p.counts, 'letters')
  end
end

-- sweep: take away lapsed leases, see that each running session is served, tell what became due or expired, forget old
-- message records and dead letters. Sessions to erase are named, the caller erases them.
-- ARGV prefix, forget after (ms), place in the active set
--   -> ok, lapsed, repaired, forgotten, next place (-1 = done), due, expired, sessions to erase...
local function sweep(keys, argv)
  local p, prefix, now, at = partition_keys(keys, 1), argv[1], now_ms(), tonumber(argv[3])
  cut_leases(prefix, p, now)
  local lapsed = lapse(prefix, p, now)
  local active = redis.call('ZRANGE', p.active, at, at + SWEEP_MAX - 1)
  local repaired = repair(prefix, p, now, active)
  local forgotten = forget(prefix, p, now - tonumber(argv[2]))
  local due, expired, more_due = ripen(prefix, p, now)
  if at == 0 then forget_letters(prefix, p, now - tonumber(argv[2])) end
  if redis.call('ZCARD', p.ready) > 0 then ring(p) end
  local more = #active == SWEEP_MAX or forgotten == SWEEP_MAX or lapsed == SWEEP_MAX or more_due
  local reply = { 'ok', lapsed, repaired, forgotten, more and at + #active or -1, due, expired }
  for _, sid in ipairs(redis.call('ZRANDMEMBER', p.erase, SWEEP_MAX)) do
    local closed = redis.pcall('HGET', prefix .. sid .. ':state', 'closed')
    if closed and not closed.err then reply[#reply + 1] = sid end -- random: none hides those behind it
  end
  return reply
end

-- == registration ==========================================================================================
-- Everything but intake may run when the server is full: leases must not lapse, healthy turns must end, memory must be freed.

-- (While a library is loaded there is no `pairs`, so each function is one line.)

local function register(name, act) redis.register_function(name, act) end
local function register_always(name, act)
  redis.register_function({ function_name = name, callback = act, flags = { 'allow-oom' } })
end

register('create_v1', create)
register('submit_v1', submit)
register('goal_advance_v1', goal_advance)
register('goal_create_v1', goal_change)
register('replace_v1', replace)
register('redrive_v1', redrive)
register_always('cancel_v1', cancel)
register_always('withdraw_v1', withdraw)
register_always('move_v1', move)
register_always('release_v1', release_session)
register_always('close_v1', close_session)
register_always('erase_v1', erase)
register_always('goal_change_v1', goal_change)
register_always('acquire_v1', acquire)
register_always('take_v1', commit)
register_always('commit_v1', commit)
register_always('settle_v1', settle)
register_always('renew_v1', renew)
register_always('handback_v1', handback)
register_always('sweep_v1', sweep)
redis.register_function({ function_name = 'queue_v1', callback = read_queue, flags = { 'no-writes' } })
