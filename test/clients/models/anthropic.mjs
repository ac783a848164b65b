// Two requests of a quota of one: the second is refused, the client waits as long as
// Retry-After says, and is served. Then it reads the headers.
import Anthropic from "@anthropic-ai/sdk";

const began = performance.now();
const client = new Anthropic({ apiKey: "none", baseURL: process.argv[2], maxRetries: 1 });
let response;
for (let i = 0; i < 2; i++) {
  ({ response } = await client.models.list().withResponse());
}
const waited = performance.now() - began;
const show = (name) => response.headers.get(`anthropic-ratelimit-${name}`);
const reset = Date.parse(show("requests-reset")) - Date.now();
console.log(
  ["requests-limit", "requests-remaining", "tokens-limit", "tokens-remaining", "output-tokens-limit"].map(show).join(" "),
  "|", reset > 0 && reset <= 3000 ? "resets" : `resets in ${reset} ms`,
  "|", waited >= 2000 && waited < 10000 ? "waited" : `waited ${waited} ms`,
);
