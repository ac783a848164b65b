// Package operator is what weirctl and the page about one client have in common. It reads the
// counts of a client under the policies and overrides in force, finds the key that an operator
// meant, and checks changes for one client.
package operator
