// Package descriptors finds the rule of each descriptor of a request, in files of package
// envoyfile or in the configuration of a management server.
package descriptors
