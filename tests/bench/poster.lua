-- Posts a prompt to each of 128 sessions in turn (see poster.py).
local sessions, number = 128, 0
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{"content": "' .. string.rep("x", 400) .. '"}'
request = function()
  number = number + 1
  return wrk.format(nil, "/v1/sessions/s" .. number % sessions .. "/prompt")
end
