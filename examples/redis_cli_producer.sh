#!/usr/bin/env bash
# A producer that has nothing but redis-cli.
#
# Shows: one XADD to the stream `mailslot:intake` is a prompt. `reply_to` names a channel of your own: what is published
# there is `{"messageId": …}` once the message is durably inside, or a problem (RFC 9457) when it was refused. That is a
# receipt and no answer: what the agent says is in the session's events.
#
# Run it beside `mailslot up`, whose screen says where the store is:
#
#     MAILSLOT_REDIS_URL=redis://127.0.0.1:6379/0 examples/redis_cli_producer.sh
#     … examples/redis_cli_producer.sh garden "how are the roses?"
#
# Needs redis-cli. Text is put into JSON as it stands, so keep quotes and backslashes out of it.

set -euo pipefail
store=${MAILSLOT_REDIS_URL:-redis://127.0.0.1:6379/0}
session=${1:-redis-cli}
text=${2-hello from redis-cli}
channel=replies:$$

# Listen first: a channel keeps nothing for those who come later. Its first three lines say that we are heard.
exec 3< <(exec redis-cli -u "$store" SUBSCRIBE "$channel")
listener=$!
trap 'kill "$listener" 2>/dev/null || true' EXIT
for _ in subscribe channel count; do read -r _ <&3; done

entry=$(redis-cli -u "$store" XADD mailslot:intake '*' \
  data "{\"sessionId\": \"$session\", \"content\": \"$text\"}" reply_to "$channel" correlation_id "letter-$$")
echo "entry $entry"

for _ in message channel; do read -r -t 30 _ <&3; done
read -r -t 30 reply <&3
echo "reply $reply"
