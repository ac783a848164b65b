// Two requests of a quota of one: the second is refused, the client waits as long as
// Retry-After says, and is served. Then it reads the headers.
import OpenAI from "openai";

const began = performance.now();
const client = new OpenAI({ apiKey: "none", baseURL: process.argv[2], maxRetries: 1 });
let response;
for (let i = 0; i < 2; i++) {
  ({ response } = await client.models.list().withResponse());
}
const waited = performance.now() - began;
const show = (name) => response.headers.get(`x-ratelimit-${name}`);
console.log(
  ["limit-requests", "remaining-requests", "reset-requests", "limit-tokens", "remaining-tokens"].map(show).join(" "),
  "|", waited >= 2000 && waited < 10000 ? "waited" : `waited ${waited} ms`,
);
