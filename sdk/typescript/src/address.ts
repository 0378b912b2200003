/** Where a session is: its id as a path, and the agent that it is to have. */

import { Refused } from "./errors.js";

/** A session, and the agent it is to have; `made` once the server has said that it has it. */
export class Address {
  readonly sessionId: string;
  readonly agent: string | undefined;
  made = false;

  constructor(sessionId: string, agent: string | undefined) {
    this.sessionId = sessionId;
    this.agent = agent;
  }

  /** The path of the session, or of something in it. */
  path(...rest: string[]): string {
    return ["/v1/sessions", segment(this.sessionId), ...rest].join("/");
  }
}

/** A piece of a path, whatever is in it. */
export function segment(text: string): string {
  if (text === "") {
    throw new Refused("bad-input", "an id must not be empty");
  }
  if (text === "." || text === "..") {
    // A URL takes these, quoted or not, as a way up: such a request would be about something else.
    throw new Refused("bad-input", `an id must not be ${JSON.stringify(text)}`);
  }
  try {
    return encodeURIComponent(text);
  } catch {
    throw new Refused("bad-input", "an id holds a lone surrogate, which is not UTF-8");
  }
}
