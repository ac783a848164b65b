// Package descriptors finds the rule of each descriptor of a request in files of package
// envoyfile, or in what a management server says.
package descriptors
