// Package driver is the contract between a throttler and its backends: [Backend] states
// it, and package backendtest checks it. A package that keeps counts, or wraps one that
// does, implements it. A program that limits requests uses package throttler, and this
// one at most for its errors: [ErrNotSent], [ErrOverloaded], [ErrFailClosed] and
// [UnavailableError].
package driver
