// Package oracle compares throttlerd with envoyproxy/ratelimit. Both get the same file and the same
// random requests:
//
//   - TestOracle and TestOracleAllOrNothing compare answers without WEIR_COMPATIBLE, about one file.
//     They must be the same, except for the differences that explain knows.
//   - TestCompatible compares whole answers and metrics with WEIR_COMPATIBLE, about random files.
//     Nothing may differ.
//
// docs/reference/throttlerd.md lists the differences, and docs/inside/testing.md the commands. The
// tests in make test replay recorded answers:
//
//	go test -tags service,record ./internal/oracle -run TestRecord
//
// records the answers again. With the tag service, tests build envoyproxy/ratelimit and ask both
// programs.
package oracle
