"""Four requests of a quota of three: the fourth is refused, urllib3 waits as
long as Retry-After says, and is served."""

import sys
import time

import urllib3

http = urllib3.PoolManager(retries=urllib3.util.Retry(total=1, status_forcelist=[429]))
used = []
began = time.monotonic()
for _ in range(4):
    used.append(http.request("GET", sys.argv[1] + "/repos/acme/rockets").headers["X-RateLimit-Used"])
print(" ".join(used), "|", "waited" if time.monotonic() - began >= 2 else "did not wait")
