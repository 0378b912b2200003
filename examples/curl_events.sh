#!/usr/bin/env bash
# curl reads a session's stream of events.
#
# Shows: a prompt and its receipt; the stream (server-sent events) from just before the receipt to the next idle; and how to
# go on after a cut: the id of the last event you saw is the cursor.
#
# Run it beside `mailslot up`:
#
#     examples/curl_events.sh            # session "curl"
#     examples/curl_events.sh garden     # another one
#
# MAILSLOT_URL says where the doors are (default http://127.0.0.1:8080). Needs curl.

set -euo pipefail
url=${MAILSLOT_URL:-http://127.0.0.1:8080}
session=${1:-curl}
address=$url/v1/sessions/$session

# A receipt: the message is inside, and its place in the ledger is `cursor`. Nothing more is said about it.
receipt=$(curl -sS --fail-with-body "$address/prompt" -d '{"content": "hello from curl"}')
echo "receipt $receipt"
cursor=$(sed -E 's/.*"cursor":([0-9]+).*/\1/' <<<"$receipt")

# follow AFTER: print each event behind the cursor, until the agent is idle.
#
# A frame is some lines `name: value` and an empty line. What stands in the ledger has an id; the very first frame is the
# session's level and has none, so it never moves a cursor.
follow() {
  local id='' data='' line
  exec 3< <(exec curl -sSN "$address/events" -H "Last-Event-ID: $1")
  local reader=$!
  while IFS= read -r line <&3; do
    case $line in
      'id: '*) id=${line#id: } ;;
      'data: '*) data=${line#data: } ;;
      '')
        if [ -n "$id" ]; then
          echo "event $id $data"
          case $data in *'"type":"agent/status"'*'"status":"idle"'*) break ;; esac
        fi
        id='' data=''
        ;;
    esac
  done
  exec 3<&-
  kill "$reader" 2>/dev/null || true # a stream has no end of its own
  last=$id
}

follow $((cursor - 1))

# As after a lost connection: nothing that was seen comes again, and nothing between is missing.
curl -sS --fail-with-body "$address/prompt" -d '{"content": "and once more"}' >/dev/null
echo "going on after event $last"
follow "$last"
