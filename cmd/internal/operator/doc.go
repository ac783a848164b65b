// Package operator answers and does for a person on call what weirctl and the page for operators
// offer: the counts of a client under the policies and overrides in force, which key is meant by
// another, and changes for one client.
package operator
