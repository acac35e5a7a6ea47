// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
)

// archiveSuffix is the suffix of the files that writeArchive writes.
const archiveSuffix = ".tar.gz"

// writeArchive writes the files of a local directory as a compressed archive, in a directory of this name.
func writeArchive(out io.Writer, directory, name string) error {
	compressed := gzip.NewWriter(out)
	archive := tar.NewWriter(compressed)
	files := os.DirFS(directory)
	err := fs.WalkDir(files, ".", func(file string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		content, err := files.Open(file)
		if err != nil {
			return err
		}
		defer content.Close()
		header := &tar.Header{Typeflag: tar.TypeReg, Name: path.Join(name, file), Mode: 0o600, Size: info.Size(), ModTime: info.ModTime()}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		_, err = io.Copy(archive, content)
		return err
	})
	if err := errors.Join(err, archive.Close(), compressed.Close()); err != nil {
		return fmt.Errorf("write the archive: %w", err)
	}
	return nil
}
