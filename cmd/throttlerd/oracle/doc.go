// Package oracle compares throttlerd with envoyproxy/ratelimit: both have the same file, are
// asked the same random requests, and must give the same answers, but for the differences that
// explain knows. docs/throttlerd.md lists them.
//
// The test of make test replays answers that were recorded:
//
//	go test -tags service,record ./oracle -run TestRecord$
//
// records them again. With the tag service a test builds envoyproxy/ratelimit and asks both
// programs.
package oracle
