// Package node knows Redis servers: whether they answer, their connections, their replication
// and their clocks. It decides nothing about counts.
package node
