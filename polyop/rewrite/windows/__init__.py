"""Op -> Op: windows of images: overlapped tiles, fewer multiplications, edges, remainders and rounds."""
