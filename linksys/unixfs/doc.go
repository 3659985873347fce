// Package unixfs builds, edits and decodes files and directories as UnixFS DAGs.
package unixfs
