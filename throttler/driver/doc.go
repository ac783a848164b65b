// Package driver is what a backend implements, and what it is asked and answers. A
// program that limits requests uses package throttler; only a package that keeps
// counts, or wraps one that does, needs this one. Package backendtest checks the
// contract, which [Backend] states.
package driver
