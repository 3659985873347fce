// Package linksys is IPLD over a block store: files, directories and any other
// linked data, addressed by CID.
package linksys
