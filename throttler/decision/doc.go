// Package decision is what a throttler says about charges: whether they are allowed,
// what is used and remains of each limit, and when to come back.
package decision
