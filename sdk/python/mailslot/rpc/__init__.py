"""The JSON-RPC door, as far as it does not depend on what carries it: WebSocket in ingest, stdio in `mailslot rpc`.

    bytes ──> frame ──> method ──> Request ──> carrier ──> the dispatcher of the REST door
              (pure)    (table)                   └──────> the session's events
                          connection: order, limits, subscriptions, the end

Rule 1: a method is the REST call it stands for. Whatever a call does, and whatever it is refused for, is decided once.
Rule 2: `session/prompt` answers exactly `{messageId}`. There is no notification for the end of a message.
Rule 3: nothing here imports a service: a carrier is handed in.
"""
