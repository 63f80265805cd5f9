<?php
// What is behind its name.
echo substr($_SERVER['PATH_INFO'] ?? '', 1);
