// Four requests of a quota of three: the fourth is refused, octokit says so as
// a primary limit, waits until the reset, and is served.
import { Octokit } from "@octokit/core";
import { throttling } from "@octokit/plugin-throttling";

const calls = [];
const octokit = new (Octokit.plugin(throttling))({
  baseUrl: process.argv[2],
  throttle: {
    onRateLimit: (retryAfter) => calls.push(`primary, ${retryAfter} s`) > 0,
    onSecondaryRateLimit: () => calls.push("secondary") < 0,
  },
});
const used = [];
for (let i = 0; i < 4; i++) {
  const response = await octokit.request("GET /repos/acme/rockets");
  used.push(response.headers["x-ratelimit-used"]);
}
console.log(used.join(" "), "|", calls.length, calls[0].split(",")[0]);
