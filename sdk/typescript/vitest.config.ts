import { defineConfig } from "vitest/config";

const PATIENCE_MS = 60_000;

/** `unit` needs nothing but this folder and the contracts; `live` needs a server, at MAILSLOT_URL. */
export default defineConfig({
  test: {
    projects: [
      { test: { name: "unit", include: ["tests/unit/**/*.test.ts"], testTimeout: PATIENCE_MS } },
      {
        test: { name: "live", include: ["tests/live/**/*.test.ts"], testTimeout: PATIENCE_MS, fileParallelism: false },
      },
    ],
  },
});
