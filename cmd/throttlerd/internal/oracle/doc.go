// Package oracle compares throttlerd with envoyproxy/ratelimit: both get the same file and the
// same random requests, and must give the same answers, except for the differences that
// explain knows. docs/reference/throttlerd.md lists them.
//
// The test in make test replays recorded answers:
//
//	go test -tags service,record ./internal/oracle -run TestRecord$
//
// records the answers again. With the tag service, a test builds envoyproxy/ratelimit and asks
// both programs.
package oracle
