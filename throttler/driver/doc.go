// Package driver is the contract between a throttler and its backends: [Backend] states
// it, and package backendtest checks it. A program that limits requests uses package
// throttler; only a package that keeps counts, or wraps one that does, needs this one.
package driver
